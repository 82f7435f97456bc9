package values

import (
	"slices"
	"sync"

	"github.com/psidecar/psidecar/proxy/route"
)

// worker names a worker's customer in its process.
type worker struct {
	origin, node  string
	app, customer int32
}

func (o *owner) worker() worker { return worker{o.origin, o.node, o.app, o.customer} }

// steps counts a worker's steps, as far as keys of few values are concerned, by layer.
// A step's push is a message to each server that has some of the keys and, if keys are
// displaced, several to one server; all have the timestamp that the worker gave the
// push. A layer at one server sees several parts of some pushes and nothing of others,
// so that its own pushes are no measure of time; that is why all streams of a worker
// count here. A push of several keys is a step. A worker that pushes each key by
// itself, as MXNet's do, makes a step of many pushes: they belong together until a key
// comes again.
type steps struct {
	streams int // streams that count here; guarded by [Codec.mu]

	mu     sync.Mutex           // guards layers
	layers map[layerID]*stepped // at most maxLayers
}

// stepped is the steps in which keys of a layer were pushed.
type stepped struct {
	steps int
	last  []numbered          // the last few pushes, a ring once it is full
	next  int                 // the oldest of them, then
	alone map[uint64]struct{} // keys that were pushed by themselves in this step
}

// numbered is a push by its timestamp, and whether it began a step.
type numbered struct {
	timestamp int32
	began     bool
}

const (
	// lastSteps is how many pushes late a part may come: parts wait for keys that move
	// while those of later pushes go.
	lastSteps = 64
	// mostAlone bounds the keys of a step that are pushed by themselves: with more of
	// them, a step counts as several.
	mostAlone = 1 << 14
)

// pushPart is a push, or a part of one, of a layer's keys.
type pushPart struct {
	timestamp int32 // of the worker's push
	key       uint64
	alone     bool // the push has no other key, as far as can be seen
}

// note records a push and returns the number of steps of the layer: at least as many as
// the stream knew of before.
func (s *steps) note(id layerID, p pushPart, before int) (steps int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.layers[id]
	if n == nil {
		if len(s.layers) >= maxLayers {
			return before + 1
		}
		n = &stepped{steps: before}
		s.layers[id] = n
	}
	// A stream that was taken over from another proxy knows of steps that were not
	// counted here.
	n.steps = max(n.steps, before)
	at := slices.IndexFunc(n.last, func(l numbered) bool { return l.timestamp == p.timestamp })
	_, again := n.alone[p.key]
	begins := n.steps == 0 || !p.alone || again || len(n.alone) >= mostAlone
	switch {
	case at < 0:
		at = n.remember(p.timestamp)
	// Another part of a push that was counted, or of one whose keys do not begin a
	// step.
	case n.last[at].began || p.alone:
		begins = false
	}
	if begins {
		n.steps++
		n.last[at].began = true
		clear(n.alone)
	}
	if p.alone {
		if n.alone == nil {
			n.alone = map[uint64]struct{}{}
		}
		n.alone[p.key] = struct{}{}
	}
	return n.steps
}

// remember returns the index of a new push in last.
func (n *stepped) remember(timestamp int32) (at int) {
	if len(n.last) < lastSteps {
		n.last = append(n.last, numbered{timestamp: timestamp})
		return len(n.last) - 1
	}
	at = n.next
	n.last[at] = numbered{timestamp: timestamp}
	n.next = (at + 1) % lastSteps
	return at
}

// whole returns the timestamp that the worker gave the request that a message is, or is
// a part of.
func (s *Sender) whole(timestamp int32) int32 {
	if s.link.Routes != nil && timestamp >= route.FirstOwn {
		if of, ok := s.link.Routes.Whole(timestamp); ok {
			return of
		}
	}
	return timestamp
}

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

// steps counts a worker's pushes of keys of few values, by layer. One push is a
// message to each server that has some of the keys and, where keys are displaced,
// several to one server; all have one timestamp of the worker's. What a threshold
// counts are these pushes: a layer at one server sees several parts of some, and
// nothing of others.
type steps struct {
	streams int // that count here; of [Codec.mu]

	mu     sync.Mutex
	layers map[layerID]*stepped // at most maxLayers
}

// stepped is how often a layer's keys were pushed.
type stepped struct {
	pushes int
	last   []int32 // timestamps, of the last few pushes
	next   int     // the oldest of them
}

// lastSteps is how many pushes back a part may come: parts of one wait, for keys
// that move, while those of later ones go.
const lastSteps = 64

// note notes a part of the push with that timestamp and returns how many
// pushes there were of the layer: at least so many as a stream knows of.
func (s *steps) note(id layerID, timestamp int32, before int) (pushes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.layers[id]
	if n == nil {
		if len(s.layers) >= maxLayers {
			return before + 1
		}
		n = &stepped{}
		s.layers[id] = n
	}
	if !slices.Contains(n.last, timestamp) {
		n.pushes = max(n.pushes, before) + 1
		if len(n.last) < lastSteps {
			n.last = append(n.last, timestamp)
		} else {
			n.last[n.next] = timestamp
			n.next = (n.next + 1) % lastSteps
		}
	}
	n.pushes = max(n.pushes, before)
	return n.pushes
}

// whole returns the timestamp that the worker gave the request of which a message
// is a part, or is.
func (s *Sender) whole(timestamp int32) int32 {
	if s.link.Routes != nil && timestamp >= route.FirstOwn {
		if of, ok := s.link.Routes.Whole(timestamp); ok {
			return of
		}
	}
	return timestamp
}

package route

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Op is a pull or push of the router's own, in the name of a worker. Its caller sets Server, Keys
// and, of a push, Values and Push, and must not change them until the op is complete or canceled.
// An op with many keys takes several messages (letters).
type Op struct {
	Server int32 // rank, or the owner of keys in parts; see [plan.Parted]
	Keys   []uint64
	// Values has one element for each key. For a push they are the caller's; for a pull they are
	// set on completion, and refer to the answers' memory.
	Values [][]byte
	Push   bool
	// Type is the type of a pull's values, on completion.
	Type pslite.DataType
	// Uses say how the workers of the job use the keys; nil: as those of this host do, as far as is known.
	Uses []Use
	// Err is why the op failed; it is set before completion.
	Err error
	// Done, where set, is called on completion, within the router's call, instead of returning the
	// op from Out.
	Done func()

	typed   bool       // Type is set
	left    int        // letters without an answer
	worker  int32      // its id
	letters []int32    // their timestamps
	pieces  [][][]byte // of a pull of keys in parts, by key: the parts that have come
}

// letter is one message of an op.
type letter struct {
	op     *Op
	server int32
	manner manner
	from   int      // index of its first key in op.Keys
	keys   []uint64 // as the server knows them: part keys of keys in parts
	part   int      // of a key in parts: which one
	frames [][]byte // kept for repetition with PS_RESEND
	acked  bool
}

// maxLetter is the largest number of keys in one message of an op. It has no more than the workers' own.
const maxLetter = 4096

// ErrNoTemplate is the reason why an op cannot begin: no worker of this host has pushed or pulled
// yet, and the router makes its own messages after one of theirs.
var ErrNoTemplate = errors.New("no worker on this host has made a request yet")

// ErrApps is the reason why an op cannot begin: the keys of several apps would have to move
// together. A key alone does not say which app's it is.
var ErrApps = errors.New("the job has several apps, whose keys cannot be distinguished")

// Mover returns the id of a worker of this host in whose name keys can be moved: the first that has
// made a request. With an error other than ErrNoTemplate they can only be brought home: that is exact however the job
// uses them.
func (r *Router) Mover() (workerID int32, err error) {
	for _, id := range r.Workers() {
		if r.workers[id].asked {
			return id, r.Unfit()
		}
	}
	return 0, ErrNoTemplate
}

// Unfit returns why the job's keys must not move, as far as the requests of this host show, and nil where they may.
func (r *Router) Unfit() error {
	if err := Fits(r.KnownUses()); err != nil || !r.manyUses {
		return err
	}
	return ErrCommands
}

// Start sends an op's messages in a worker's name. When all are answered, or at once where that
// cannot be, the op is complete: Out returns it, or Done is called.
func (r *Router) Start(workerID int32, op *Op) {
	w := r.workers[workerID]
	if w == nil {
		op.Err = fmt.Errorf("worker %d has ended", workerID)
		r.over(op)
		return
	}
	op.worker = workerID
	if !op.Push {
		op.Values = make([][]byte, len(op.Keys))
	}
	manners, err := r.manners(op)
	if r.like(&Use{}, op.Push) == nil {
		err = ErrNoTemplate
	}
	if err != nil {
		op.Err = err
		r.over(op)
		return
	}
	if parts := plan.PartsOf(op.Server); parts > 0 {
		r.startParts(w, op, parts, manners)
		return
	}
	for from := 0; from < len(op.Keys); {
		n := letterKeys(op, manners, from)
		r.startLetter(w, &letter{op: op, server: op.Server, manner: manners[from], from: from, keys: op.Keys[from : from+n]}, op.Values[from:from+n]...)
		from += n
	}
}

// startLetter sends a message of an op, with values where it pushes. Its timestamp is an exact one:
// a codec must neither round the values nor hold any back.
func (r *Router) startLetter(w *worker, l *letter, values ...[]byte) {
	op, own := l.op, w.nextExact(1)
	l.frames = r.compose(w, l, values, own)
	w.ops[own] = l
	op.letters = append(op.letters, own)
	op.left++
	r.send(w, l.server, l.frames)
}

// startParts sends an op for keys in parts, a message for each part of each key. It checks all keys
// first, so that an op fails before any of it is sent.
func (r *Router) startParts(w *worker, op *Op, parts int, manners []manner) {
	servers := r.table.servers
	for i, key := range op.Keys {
		_, ok := plan.PartKey(key, 0, parts, servers)
		if !ok || op.Push && len(op.Values[i]) < 8*parts {
			op.Err = fmt.Errorf("%d bytes of key %d cannot be in %d parts", len(op.Values[i]), key, parts)
			r.over(op)
			return
		}
	}
	if !op.Push {
		op.pieces = make([][][]byte, len(op.Keys))
	}
	for i, key := range op.Keys {
		if !op.Push {
			op.pieces[i] = make([][]byte, parts)
		}
		home := plan.HomeOf(key, servers)
		for part := range parts {
			at, _ := plan.PartKey(key, part, parts, servers)
			l := &letter{op: op, server: plan.PartRank(home, part, servers), manner: manners[i], from: i, part: part, keys: []uint64{at}}
			from, to := plan.PartBytes(len(op.Values[i]), part, parts)
			r.startLetter(w, l, op.Values[i][from:to])
		}
	}
}

// takeOwn handles the answer to a message of an op. The error of an answer that does not fit is the
// op's: the worker's connection goes on.
func (r *Router) takeOwn(w *worker, l *letter, m *pslite.Message) error {
	op := l.op
	own := m.Meta.Timestamp
	delete(w.ops, own)
	if r.resend {
		r.acceptAnswer(w, l.server, m.Meta.AppID, own)
	}
	if !op.Push && op.Err == nil {
		op.Err = op.keepValues(l, m)
	}
	if op.left--; op.left == 0 {
		if op.pieces != nil && op.Err == nil {
			op.Err = op.joinParts()
		}
		r.over(op)
	}
	return nil
}

// joinParts concatenates the pulled parts of each key, which must be as long as PartBytes divides
// the whole.
func (op *Op) joinParts() error {
	for i, parts := range op.pieces {
		v := slices.Concat(parts...)
		for part, p := range parts {
			if from, to := plan.PartBytes(len(v), part, len(parts)); to-from != len(p) {
				return fmt.Errorf("part %d of %d of key %d has %d bytes, of %d that all have", part, len(parts), op.Keys[i], len(p), len(v))
			}
		}
		op.Values[i] = v
	}
	op.pieces = nil
	return nil
}

// over completes an op.
func (r *Router) over(op *Op) {
	if op.Done != nil {
		op.Done()
		return
	}
	r.out = append(r.out, Out{Op: op})
}

// keepValues stores the values of an answer in the op. They refer to m's memory.
func (op *Op) keepValues(l *letter, m *pslite.Message) error {
	keys, n := m.Keys(), len(l.keys)
	if keys.Len() != n || len(m.Data) < 2 {
		return fmt.Errorf("server %d answers with %d keys in %d frames, want %d", l.server, keys.Len(), len(m.Data), n)
	}
	pieces, err := piecesOf(m)
	if err != nil {
		return fmt.Errorf("server %d: %w", l.server, err)
	}
	v := m.Values()
	if op.typed && op.Type != v.Type {
		return fmt.Errorf("server %d answers with values of type %d, after those of type %d", l.server, v.Type, op.Type)
	}
	op.Type, op.typed = v.Type, true
	for i, p := range pieces {
		if p.key != l.keys[i] {
			return fmt.Errorf("server %d answers with key %d, want %d", l.server, p.key, l.keys[i])
		}
		if op.pieces != nil {
			op.pieces[l.from][l.part] = p.value
			continue
		}
		op.Values[l.from+i] = p.value
	}
	return nil
}

// Cancel forgets an op in flight; its answers are counted as strays when they come. A push may
// still take effect.
func (r *Router) Cancel(op *Op) {
	w := r.workers[op.worker]
	if w == nil {
		return
	}
	for _, own := range op.letters {
		delete(w.ops, own)
	}
	op.left = 0
}

// InFlight reports whether a message of the op has no answer.
func (op *Op) InFlight() bool { return op.left > 0 }

// Asks reports whether a message of an op to a server, in a worker's name, has no answer.
func (r *Router) Asks(op *Op, workerID, server int32) bool {
	w := r.workers[workerID]
	return w != nil && slices.ContainsFunc(op.letters, func(own int32) bool {
		l := w.ops[own]
		return l != nil && l.server == server
	})
}

// Pace sets a function that [Router.Repeat] asks whether a message of an op, by worker and
// timestamp, is to be sent again now. Without it each is sent again at each call.
func (r *Router) Pace(again func(workerID, own int32) bool) { r.pace = again }

// Repeat sends again the router's own messages that are not acknowledged. In jobs with PS_RESEND
// the caller calls it every few hundred milliseconds; in others the transport loses nothing, and it
// does nothing.
func (r *Router) Repeat() {
	if !r.resend {
		return
	}
	for _, id := range r.Workers() {
		w := r.workers[id]
		for _, own := range slices.Sorted(maps.Keys(w.ops)) {
			if l := w.ops[own]; !l.acked && (r.pace == nil || r.pace(id, own)) {
				r.send(w, l.server, l.frames)
			}
		}
	}
}

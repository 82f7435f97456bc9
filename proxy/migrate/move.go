package migrate

import (
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// Handler is what a server does with pushed values. Moves push differences to a server that adds
// and whole values to one that assigns.
type Handler uint8

// The handlers: of an unknown one keys are never moved.
const (
	Unknown Handler = iota
	Adds            // store += value
	Assigns         // store = value, on every push
	Opaque          // neither
)

// String returns the handler's name as flags spell it.
func (h Handler) String() string {
	return [...]string{"unknown", "add", "assign", "none"}[h]
}

// Move is a set of keys that go from one server to another, as one batch.
type Move struct {
	Plan     uint64 // the planner's number for what this is part of
	From, To int32  // ranks
	Keys     []uint64
	Handler  Handler // of both servers
}

// Ranges returns the keys, which must be ascending, as ranges; consecutive keys share one.
func (m *Move) Ranges() []plan.Keys {
	var all []plan.Keys
	for _, k := range m.Keys {
		if n := len(all); n > 0 && all[n-1].Last+1 == k {
			all[n-1].Last = k
			continue
		}
		all = append(all, plan.One(k))
	}
	return all
}

// Phase is how far a move has come.
type Phase uint8

const (
	quieting  Phase = iota // until no request for the keys is in flight anywhere
	reading                // pulling the values from the old owner
	writing                // pushing to the new owner
	checking               // pulling what it has now
	recording              // until the planner has it on disk
	over
)

// Phases is how many there are before a move is over.
const Phases = int(over)

// String says what a move is waiting for.
func (p Phase) String() string {
	return [...]string{"quiet", "read", "write", "check", "record", "over"}[p]
}

// maxCorrections bounds the pushes of differences to a value. A floating point sum is rounded, so
// one correction may not be enough; a handler that needs more than this many does not add.
const maxCorrections = 8

// ErrHandler is the reason why keys were not moved: the server does not take pushes as its handler
// was declared to.
var ErrHandler = errors.New("the server does not take pushes as its handler should")

// ValueError names keys that stay where they are because of their values: they have none, or one
// that cannot be brought about by adding. The other keys of the move can go without them.
type ValueError struct {
	Keys []uint64
	Err  error
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("%d keys, the first of which is %d: %v", len(e.Keys), e.Keys[0], e.Err)
}

func (e *ValueError) Unwrap() error { return e.Err }

// noteKey adds a key, and is the error from then on.
func (e *ValueError) noteKey(key uint64, err error) {
	if e.Keys = append(e.Keys, key); e.Err == nil {
		e.Err = err
	}
}

// moving is a move in progress, at its mover.
//
// Invariants: loud is not empty while phase is quieting; a site that restarts is put back into it
// only in that phase. op is what reading, writing or checking waits for. From the end of reading on,
// want has the value of each key, in the order of move.Keys, and does not change. left indexes
// move.Keys and want; the answers of op are in the order of left.
type moving struct {
	move   Move
	batch  route.Batch
	ranges []plan.Keys
	phase  Phase
	worker int32
	loud   map[string]bool // sites with requests still in flight
	uses   []route.Use     // of the keys, on the sites that are quiet
	op     *route.Op
	want   [][]byte
	typ    pslite.DataType
	left   []int // indexes of the keys whose value at the new owner is not right yet
	tried  int   // corrections so far, at most maxCorrections
	bytes  uint64
}

// nextOp is called when op is complete, and returns the next one. It returns nil when the new owner
// has all values, and an error where the move cannot succeed.
//
// A check is sent only when the push before it is answered. Servers do not handle the messages of a
// connection in order: dmlc/ps-lite's Customer queues them by priority, and those of one priority
// in no order. A pull that overtakes its push shows the old value; the difference would be pushed a
// second time, and another such pull would find the value right before that push is applied.
func (m *moving) nextOp() (*route.Op, error) {
	if err := m.op.Err; err != nil {
		return nil, err
	}
	switch m.phase {
	case reading:
		m.want, m.typ = m.op.Values, m.op.Type
		var none ValueError
		for i, v := range m.want {
			m.bytes += uint64(len(v))
			if len(v) == 0 {
				none.noteKey(m.move.Keys[i], fmt.Errorf("server %d has no value", m.move.From))
			}
			m.left = append(m.left, i)
		}
		if none.Err != nil {
			return nil, &none
		}
		return m.write(m.fresh)
	case writing:
		m.phase = checking
		m.op = &route.Op{Server: m.move.To, Keys: m.keysLeft(), Uses: m.uses}
		return m.op, nil
	}
	var have [][]byte
	var wrong []int
	for i, at := range m.left {
		if !same(m.want[at], m.op.Values[i], m.typ) {
			wrong, have = append(wrong, at), append(have, m.op.Values[i])
		}
	}
	if m.left = wrong; len(wrong) == 0 {
		return nil, nil
	}
	if m.tried++; m.tried > maxCorrections || m.move.Handler == Assigns {
		return nil, fmt.Errorf("key %d on server %d: %w (%s)", m.move.Keys[wrong[0]], m.move.To, ErrHandler, m.move.Handler)
	}
	return m.write(func(i int) ([]byte, error) { return difference(m.want[m.left[i]], have[i], m.typ) })
}

// fresh returns the first push for a key: the value itself. If the new owner already has a value
// for the key, as after an earlier move, the first check finds that and the difference is pushed.
// Pulling first instead could kill the server: one that does not know the key aborts.
func (m *moving) fresh(i int) ([]byte, error) {
	want := m.want[m.left[i]]
	if m.move.Handler == Assigns {
		return want, nil
	}
	return difference(want, make([]byte, len(want)), m.typ)
}

func (m *moving) keysLeft() []uint64 {
	keys := make([]uint64, len(m.left))
	for i, at := range m.left {
		keys[i] = m.move.Keys[at]
	}
	return keys
}

// write makes the push of value(i) to each of the keys left, as the new op.
func (m *moving) write(value func(i int) ([]byte, error)) (*route.Op, error) {
	m.phase = writing
	op := &route.Op{Server: m.move.To, Push: true, Keys: m.keysLeft(), Uses: m.uses, Values: make([][]byte, len(m.left))}
	var unfit ValueError
	for i := range m.left {
		var err error
		if op.Values[i], err = value(i); err != nil {
			unfit.noteKey(op.Keys[i], err)
		}
	}
	if unfit.Err != nil {
		return nil, &unfit
	}
	m.op = op
	return op, nil
}

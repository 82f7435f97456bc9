package migrate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
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

// moving is a move in progress, at its mover.
//
// Invariants: loud is not empty while phase is quieting; a site that restarts is put back into it
// only in that phase. op is what reading, writing or checking waits for; ahead is the check that
// follows op where it was sent at once. From the end of reading on, want has the value of each key,
// in the order of move.Keys, and does not change. left indexes move.Keys and want; the answers of
// op are in the order of left.
type moving struct {
	move   Move
	batch  route.Batch
	ranges []plan.Keys
	phase  Phase
	worker int32
	loud   map[string]bool // sites with requests still in flight
	op     *route.Op
	ahead  *route.Op // the first check, sent right behind what it checks
	early  bool      // ahead is complete, op is not
	want   [][]byte
	typ    pslite.DataType
	left   []int // indexes of the keys whose value at the new owner is not right yet
	tried  int   // corrections so far, at most maxCorrections
	bytes  uint64
}

// nextOp is called when op is complete, and returns the next one, which may have been sent already
// (ahead). It returns nil when the new owner has all values, and an error where the move cannot
// succeed.
func (m *moving) nextOp() (*route.Op, error) {
	if err := m.op.Err; err != nil {
		return nil, err
	}
	switch m.phase {
	case reading:
		m.want, m.typ = m.op.Values, m.op.Type
		for i, v := range m.want {
			m.bytes += uint64(len(v))
			if len(v) == 0 {
				return nil, fmt.Errorf("server %d has no value of key %d", m.move.From, m.move.Keys[i])
			}
			m.left = append(m.left, i)
		}
		return m.write(m.fresh)
	case writing:
		m.phase = checking
		if m.ahead == nil {
			m.op = m.ask()
			return m.op, nil
		}
		m.op, m.ahead = m.ahead, nil
		if !m.early {
			return m.op, nil
		}
		if err := m.op.Err; err != nil {
			return nil, err
		}
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
	op := &route.Op{Server: m.move.To, Push: true, Keys: m.keysLeft(), Values: make([][]byte, len(m.left))}
	for i := range m.left {
		var err error
		if op.Values[i], err = value(i); err != nil {
			return nil, fmt.Errorf("key %d: %w", op.Keys[i], err)
		}
	}
	m.op = op
	return op, nil
}

// ask makes the pull of the keys left from the new owner.
func (m *moving) ask() *route.Op { return &route.Op{Server: m.move.To, Keys: m.keysLeft()} }

// ops returns the ops in flight, for cancellation.
func (m *moving) ops() []*route.Op {
	return slices.DeleteFunc([]*route.Op{m.op, m.ahead}, func(op *route.Op) bool { return op == nil })
}

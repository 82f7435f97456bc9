package unchanged

import (
	"encoding/binary"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// Receiver decodes what a [Sender] wrote. It holds the values of every slot that the
// sender's answers occupy; bytes is their sum and at most limits.Bytes.
type Receiver struct {
	limits Limits
	slots  [][]byte // values, nil where a slot holds nothing
	bytes  int
	number byte // of answers so far
	diff   sparse.Vector
}

// NewReceiver returns a receiver that has received nothing yet.
func NewReceiver(l Limits) *Receiver { return &Receiver{limits: l} }

// Bytes is the size of all values kept.
func (r *Receiver) Bytes() int { return r.bytes }

// Decode returns the values of an answer and what follows its encoded form in src. The
// values belong to the receiver and may be read until the next call. After an error the
// receiver is unusable.
func (r *Receiver) Decode(src []byte) (values, rest []byte, err error) {
	if len(src) < 2 {
		return nil, nil, fmt.Errorf("%w: it has %d bytes", ErrCorrupt, len(src))
	}
	if src[1] != r.number {
		return nil, nil, fmt.Errorf("%w: number %d where %d comes next", ErrCorrupt, src[1], r.number)
	}
	r.number++
	switch f := form(src[0]); f {
	case formWhole:
		return r.readWhole(src[2:])
	case formChanges:
		return r.readChanges(src[2:])
	default:
		return nil, nil, fmt.Errorf("%w: unknown form %d", ErrCorrupt, f)
	}
}

// readWhole reads the slots that the sender has emptied, then an answer for one of the
// empty ones. The bounds are checked in this order: what is forgotten makes the room for
// what follows.
func (r *Receiver) readWhole(src []byte) (values, rest []byte, err error) {
	for {
		slot, used := binary.Uvarint(src)
		if used <= 0 {
			return nil, nil, fmt.Errorf("%w: it ends within the slots to forget", ErrCorrupt)
		}
		src = src[used:]
		if slot == slotEnd {
			break
		}
		if slot > uint64(len(r.slots)) || r.slots[slot-1] == nil {
			return nil, nil, fmt.Errorf("%w: slot %d is forgotten and holds nothing", ErrCorrupt, slot-1)
		}
		r.bytes -= len(r.slots[slot-1])
		r.slots[slot-1] = nil
	}
	slot, used := binary.Uvarint(src)
	// The slot after all that exist is a new one; slots never outnumber the answers
	// that may be kept.
	if used <= 0 || slot > uint64(len(r.slots)) || slot >= uint64(max(r.limits.Answers, 0)) {
		return nil, nil, fmt.Errorf("%w: no slot %d", ErrCorrupt, slot)
	}
	src = src[used:]
	size, used := binary.Uvarint(src)
	if used <= 0 || size == 0 || size > uint64(len(src)-used) || size > uint64(r.limits.Bytes-r.bytes) {
		return nil, nil, fmt.Errorf("%w: %d bytes of values", ErrCorrupt, size)
	}
	src = src[used:]
	if int(slot) == len(r.slots) {
		r.slots = append(r.slots, nil)
	}
	if r.slots[slot] != nil {
		return nil, nil, fmt.Errorf("%w: slot %d is filled twice", ErrCorrupt, slot)
	}
	r.slots[slot] = append([]byte(nil), src[:size]...)
	r.bytes += int(size)
	return r.slots[slot], src[size:], nil
}

// readChanges applies the numbers that differ to the values of a slot, in place.
func (r *Receiver) readChanges(src []byte) (values, rest []byte, err error) {
	slot, used := binary.Uvarint(src)
	if used <= 0 || slot >= uint64(len(r.slots)) || r.slots[slot] == nil {
		return nil, nil, fmt.Errorf("%w: changes of slot %d, which holds nothing", ErrCorrupt, slot)
	}
	values = r.slots[slot]
	rest, err = r.diff.Decode(src[used:], len(values))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if r.diff.N*r.diff.Kind.Size() != len(values) {
		return nil, nil, fmt.Errorf("%w: changes of %d numbers of %v, slot %d has %d bytes",
			ErrCorrupt, r.diff.N, r.diff.Kind, slot, len(values))
	}
	r.diff.Merge(values)
	return values, rest, nil
}

package unchanged

import (
	"container/list"
	"encoding/binary"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Sender encodes answers. It keeps the values last sent for each name, least recently used
// last, and numbers the places that they have at both ends (slots). bytes is the sum of
// their sizes. It is not safe for concurrent use.
type Sender struct {
	limits Limits
	kept   map[uint64]*list.Element // by name; the element's value is an *answer
	recent *list.List               // most recently used first
	free   []int                    // empty slots below slots
	slots  int                      // slots ever used
	bytes  int
	number byte // of answers so far
	diff   sparse.Vector
	// changed counts the numbers that were sent as changes.
	changed uint64
}

// answer holds the values last sent for a name.
type answer struct {
	name   uint64
	slot   int
	values []byte
}

// NewSender returns a sender that has sent nothing yet.
func NewSender(l Limits) *Sender {
	return &Sender{limits: l, kept: make(map[uint64]*list.Element), recent: list.New()}
}

// Changed returns how many numbers were sent in answers of which only changes were sent.
func (s *Sender) Changed() uint64 { return s.changed }

// Knows reports whether an answer of that name is kept.
func (s *Sender) Knows(name uint64) bool { return s.kept[name] != nil }

// Append appends the encoded form of an answer's values. The name identifies the keys they
// are for and must never stand for different keys. With ok false the answer does not fit
// the limits: it goes as it is, dst is unchanged, and the sender's state too. Values that
// are not a whole number of the kind compare as 16-bit numbers or, if their length is odd,
// are not encoded either. After ok the encoded form must reach the receiver, whose state
// follows the sender's by nothing else.
func (s *Sender) Append(dst []byte, name uint64, kind element.Kind, values []byte) (encoded []byte, ok bool) {
	if len(values)%kind.Size() != 0 {
		kind = element.BFloat16
	}
	if len(values) == 0 || len(values)%kind.Size() != 0 || len(values) > s.limits.Bytes || s.limits.Answers < 1 {
		return dst, false
	}
	if e := s.kept[name]; e != nil {
		s.recent.MoveToFront(e)
		if a := e.Value.(*answer); len(a.values) == len(values) {
			return s.appendChanges(dst, a, kind, values), true
		}
		return s.appendWhole(dst, name, values, e), true
	}
	return s.appendWhole(dst, name, values, nil), true
}

// appendChanges encodes the difference from the answer last sent, and keeps the new values.
func (s *Sender) appendChanges(dst []byte, a *answer, kind element.Kind, values []byte) []byte {
	s.diff.Reset(kind, len(values)/kind.Size())
	vector.Differ(kind, a.values, values, s.diff.Mask)
	s.diff.Gather(values)
	copy(a.values, values)
	s.changed += uint64(s.diff.Count())
	dst = append(dst, byte(formChanges), s.number)
	s.number++
	dst = binary.AppendUvarint(dst, uint64(a.slot))
	return s.diff.Append(dst)
}

// appendWhole encodes an answer whole. It evicts others to make room, and first of
// all old, the answer kept for this name if it has another length. Every slot that
// becomes empty is listed for the receiver.
func (s *Sender) appendWhole(dst []byte, name uint64, values []byte, old *list.Element) []byte {
	dst = append(dst, byte(formWhole), s.number)
	s.number++
	if old != nil {
		dst = s.dropAnswer(dst, old)
	}
	// The answer fits the limits by itself, so that this ends before nothing is left.
	for s.bytes+len(values) > s.limits.Bytes || len(s.kept) >= s.limits.Answers {
		dst = s.dropAnswer(dst, s.recent.Back())
	}
	a := &answer{name: name, slot: s.slots, values: append([]byte(nil), values...)}
	if last := len(s.free) - 1; last >= 0 {
		a.slot, s.free = s.free[last], s.free[:last]
	} else {
		s.slots++
	}
	s.kept[name] = s.recent.PushFront(a)
	s.bytes += len(values)
	dst = append(dst, slotEnd)
	dst = binary.AppendUvarint(dst, uint64(a.slot))
	dst = binary.AppendUvarint(dst, uint64(len(values)))
	return append(dst, values...)
}

// dropAnswer evicts an answer and appends its slot to the list of slots to forget.
func (s *Sender) dropAnswer(dst []byte, e *list.Element) []byte {
	a := s.recent.Remove(e).(*answer)
	delete(s.kept, a.name)
	s.free = append(s.free, a.slot)
	s.bytes -= len(a.values)
	return binary.AppendUvarint(dst, uint64(a.slot)+1)
}

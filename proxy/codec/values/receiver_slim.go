package values

import (
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/quantize"
	"github.com/psidecar/psidecar/proxy/codec/slim"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// known is the receiver's state of one layer of slim. The sender chooses the layer's
// number and may give it to another layer later; it counts cost by the same formula
// and stops before left would be negative.
type known struct {
	cost   int // taken from left, as the sender counts it
	rounds *slim.Receiver
	values []byte // of a layer of pulls
}

// learn reads the values of a layer of pulls that begins. They come whole and are
// copied, as later rounds bring only some of them and leave the others as they were.
func (r *Receiver) learn(src, out []byte) (n int, rest []byte, err error) {
	number, src, err := uvarint(src)
	if err != nil {
		return 0, nil, err
	}
	if n, rest, err = plainPart(src, out); err != nil {
		return 0, nil, err
	}
	l, err := r.beginPart(number, pulled.cost(n), n)
	if err != nil {
		return 0, nil, err
	}
	l.values = append([]byte(nil), out[:n]...)
	return n, rest, nil
}

// beginPart begins a layer of at most most numbers, in place of any that had its
// number before. The old one's cost is returned first, as the sender does it.
func (r *Receiver) beginPart(number, cost, most int) (*known, error) {
	if old := r.layers[number]; old != nil {
		r.left += old.cost
	}
	if r.left -= cost; number >= maxRounds || r.left < 0 {
		return nil, fmt.Errorf("%w: more layers to remember than was agreed", ErrCorrupt)
	}
	l := &known{cost: cost, rounds: slim.NewReceiver(most)}
	r.layers[number] = l
	return l, nil
}

// round reads a round of a layer of slim: of a push, whose other values are zero, or of
// an answer, whose other values are those of the round before.
func (r *Receiver) round(kind part, src, out []byte) (n int, rest []byte, err error) {
	number, src, err := uvarint(src)
	if err != nil {
		return 0, nil, err
	}
	if len(src) == 0 || number >= maxRounds {
		return 0, nil, fmt.Errorf("%w: a round of layer %d", ErrCorrupt, number)
	}
	flags, src := src[0], src[1:]
	l := r.layers[number]
	isFirst := flags&roundFirst != 0 && kind == partSlim
	if isFirst {
		if l, err = r.beginPart(number, 0, len(out)); err != nil {
			return 0, nil, err
		}
	}
	if l == nil || (l.values != nil) != (kind == partFilled) {
		return 0, nil, fmt.Errorf("%w: a round of layer %d, which has not begun", ErrCorrupt, number)
	}
	v, count, src, err := l.rounds.DecodeHeader(src)
	if err != nil {
		return 0, nil, corrupt(err)
	}
	decode := sparse.DecodeValues
	if flags&roundQuantized != 0 {
		decode = quantize.Decode
	}
	// The size of a push's layer is known only after its header; until then a layer
	// that begins costs nothing.
	if isFirst {
		l.cost = pushed.cost(v.N * v.Kind.Size())
		if r.left -= l.cost; r.left < 0 {
			return 0, nil, fmt.Errorf("%w: more layers than was agreed", ErrCorrupt)
		}
	}
	if kind == partSlim {
		return expand(v, count, src, out, decode)
	}
	if n = v.N * v.Kind.Size(); n != len(l.values) || n > len(out) {
		return 0, nil, fmt.Errorf("%w: %d numbers of %v for a layer of %d bytes, where %d are wanted", ErrCorrupt, v.N, v.Kind, len(l.values), len(out))
	}
	if v.Values, rest, err = decode(out[:0:n], v.Kind, count, src); err != nil {
		return 0, nil, corrupt(err)
	}
	v.Merge(l.values)
	v.Values = nil
	n, err = fill(out, l.values)
	return n, rest, err
}

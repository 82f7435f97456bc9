package values

import (
	"context"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// uncounted is the size up to which values of a part take no memory from the bound.
const uncounted = 64 << 10

// decodeValues appends to dst the count numbers of a kind at the beginning of src, and
// returns what follows them.
type decodeValues func(dst []byte, kind element.Kind, count int, src []byte) (values, rest []byte, err error)

// readValues sets the values of v to the count numbers at the beginning of src. Their
// memory is taken from the bound before they are decoded: equal numbers take next to
// nothing on the wire, so that a short message can claim very many. It is the vector's
// until giveWork.
func (r *Receiver) readValues(v *sparse.Vector, count int, src []byte, decode decodeValues) (rest []byte, err error) {
	size := count * v.Kind.Size()
	if r.memory == nil || size <= uncounted {
		v.Values, rest, err = decode(v.Values[:0], v.Kind, count, src)
		if err != nil {
			return nil, corrupt(err)
		}
		return rest, nil
	}
	r.giveWork()
	ctx, cancel := context.WithTimeout(context.Background(), memoryPatience)
	defer cancel()
	if r.work, err = r.memory.Borrow(ctx, size); err != nil {
		return nil, fmt.Errorf("values: no memory within the bound for %d bytes of values: %w", size, err)
	}
	r.worked = v
	v.Values, rest, err = decode(r.work[:0], v.Kind, count, src)
	if err != nil {
		return nil, corrupt(err)
	}
	return rest, nil
}

// giveWork returns the memory of the last readValues.
func (r *Receiver) giveWork() {
	if r.work != nil {
		r.worked.Values = nil
		r.memory.Return(r.work)
		r.work, r.worked = nil, nil
	}
}

// mayRemember reserves memory for everything that a part with at most most bytes of
// values may have the receiver remember. It may block, and is called before the part
// changes any state.
func (r *Receiver) mayRemember(most int) error {
	n := most + r.keys.Len()*cellBytes
	if err := r.state.Grow(n); err != nil {
		return fmt.Errorf("values: %w", err)
	}
	r.counted += n
	return nil
}

// countState returns what mayRemember took and the part did not need.
func (r *Receiver) countState() {
	n := r.keyed.limit - r.keyed.left + r.copied.limit - r.copied.left + r.last.Bytes() + pullBytes - r.left
	r.state.Shrink(r.counted - n)
	r.counted = n
}

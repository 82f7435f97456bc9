package threshold

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// block is how many numbers are taken at a time.
const block = 256

// room holds a block's numbers, gathered from the residual.
type room [block]float32

// take picks the function that rounds to the layer's kind; float32 needs no rounding.
func (r *narrow) take(w *Workspace, at []uint32, dst []byte) (values []byte, nonFinite int) {
	switch r.kind {
	case element.Float16:
		return take16(r.e, &w.room, at, dst, vector.RoundToFloat16)
	case element.BFloat16:
		return take16(r.e, &w.room, at, dst, vector.RoundToBFloat16)
	default:
		return takeFloat32(r.e, at, dst)
	}
}

func (r *wide) take(_ *Workspace, at []uint32, dst []byte) (values []byte, nonFinite int) {
	dst = slices.Grow(dst, 8*len(at))
	for _, i := range at {
		v := r.e[i]
		if v-v != 0 {
			nonFinite++
		}
		r.e[i] = 0
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	}
	return dst, nonFinite
}

// takeFloat32 is take for a residual and values of one kind, where rounding leaves nothing;
// the common case.
func takeFloat32(e []float32, at []uint32, dst []byte) (values []byte, nonFinite int) {
	start := len(dst)
	dst = slices.Grow(dst, 4*len(at))[:start+4*len(at)]
	out := dst[start:]
	for _, i := range at {
		b := math.Float32bits(e[i])
		if b<<1 >= 0xff<<24 {
			nonFinite++
		}
		e[i] = 0
		binary.LittleEndian.PutUint32(out, b)
		out = out[4:]
	}
	return dst, nonFinite
}

// take16 is take for values of 16 bits. round writes numbers in the layer's kind to its
// first argument, replaces each number of its second by its rounding error, or by 0 if the
// number is not finite, and counts those that are not. It is fast for multiples of 8
// numbers, so a block is padded to one; the slack at the end of dst takes the padding.
func take16(e []float32, room *room, at []uint32, dst []byte, round func([]byte, []float32) int) (values []byte, nonFinite int) {
	const size, step = 2, 8
	start := len(dst)
	dst = slices.Grow(dst, size*(len(at)+step-1))[:start+size*len(at)]
	out := dst[start:]
	for len(at) > 0 {
		part := at[:min(len(at), block)]
		numbers := room[:len(part)]
		for j, i := range part {
			numbers[j] = e[i]
		}
		// Zeros round to zeros, and what they leave is not stored.
		for len(numbers)%step != 0 {
			numbers = append(numbers, 0)
		}
		nonFinite += round(out[:size*len(numbers)], numbers)
		for j, i := range part {
			e[i] = numbers[j]
		}
		at, out = at[len(part):], out[size*len(part):]
	}
	return dst, nonFinite
}

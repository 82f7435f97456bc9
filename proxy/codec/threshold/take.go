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
type room struct {
	narrow [block]float32
	wide   [block]float64
}

// take picks the function that rounds to the layer's kind; float32 needs no rounding.
func (r *narrow) take(w *Workspace, at []uint32, dst []byte) (values []byte, nonFinite int) {
	switch r.kind {
	case element.Float16:
		return take(r.e, w.room.narrow[:], at, dst, 2, 8, vector.RoundToFloat16)
	case element.BFloat16:
		return take(r.e, w.room.narrow[:], at, dst, 2, 8, vector.RoundToBFloat16)
	default:
		return takeFloat32(r.e, at, dst)
	}
}

func (r *wide) take(w *Workspace, at []uint32, dst []byte) (values []byte, nonFinite int) {
	by := roundToFloat64
	switch r.kind {
	case element.Float32:
		by = roundToFloat32
	case element.Float16:
		by = roundToFloat16
	case element.BFloat16:
		by = roundToBFloat16
	}
	return take(r.e, w.room.wide[:], at, dst, r.kind.Size(), 1, by)
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

// take is residual.take for values of size bytes. round writes numbers in the layer's
// kind to its first argument, replaces each number of its second by its rounding
// error, or by 0 if the number is not finite, and counts those that are not. It is
// fast for multiples of step numbers, so a block is padded to one; the slack at the
// end of dst takes the padding.
func take[R vector.Float](e, room []R, at []uint32, dst []byte, size, step int, round func([]byte, []R) int) (values []byte, nonFinite int) {
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

// The round functions of float64 residuals.

func roundToFloat64(dst []byte, v []float64) int {
	return roundTo(dst, v, 8, func(b []byte, x float64) float64 {
		binary.LittleEndian.PutUint64(b, math.Float64bits(x))
		return x
	})
}

func roundToFloat32(dst []byte, v []float64) int {
	return roundTo(dst, v, 4, func(b []byte, x float64) float64 {
		f := element.ToFloat32(x)
		binary.LittleEndian.PutUint32(b, math.Float32bits(f))
		return float64(f)
	})
}

func roundToFloat16(dst []byte, v []float64) int  { return roundTo16(dst, v, element.Float16) }
func roundToBFloat16(dst []byte, v []float64) int { return roundTo16(dst, v, element.BFloat16) }

func roundTo16(dst []byte, v []float64, kind element.Kind) int {
	return roundTo(dst, v, 2, func(b []byte, x float64) float64 {
		kind.Put(b, 0, x)
		return kind.At(b, 0)
	})
}

// roundTo rounds each number of v by round, which writes it and returns what it
// wrote, and leaves the rest in v.
func roundTo(dst []byte, v []float64, size int, round func([]byte, float64) float64) (nonFinite int) {
	for i, x := range v {
		rest := x - round(dst[i*size:(i+1)*size], x)
		if x-x != 0 {
			nonFinite++
			rest = 0
		}
		v[i] = rest
	}
	return nonFinite
}

package threshold

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// residual is what is left of a layer's gradients, in one of two precisions.
// Limits are float64, which holds the numbers of both.
type residual interface {
	// add adds a gradient to the numbers first..end and compares, as
	// vector.AddFloat32.
	add(first, end int, g []byte, limit float64, mask []uint64)
	// compare compares all numbers, as vector.CompareFloat32.
	compare(limit float64, mask []uint64)
	// choose returns the threshold for a sparsity.
	choose(s *vector.Selector, sparsity float64) float64
	// take appends the numbers from first on that mask names to dst, in the
	// layer's kind, and leaves what rounding to it leaves. nonFinite of them are
	// NaN or infinite and leave nothing.
	take(first int, mask []uint64, dst []byte) (values []byte, nonFinite int)
	// gather returns a copy of the numbers at the positions, in the workspace.
	gather(w *Workspace, at []uint32) residual
	// scatter is the way back.
	scatter(part residual, at []uint32)
	// grow adds n zeros.
	grow(n int)
	// measure counts the numbers that are not zero and sums their squares.
	measure() (count int, squares float64)
}

// narrow is a residual of float32 numbers.
type narrow struct {
	kind element.Kind
	e    []float32
}

// wide is a residual of float64 numbers.
type wide struct {
	kind element.Kind
	e    []float64
}

func newNarrow(kind element.Kind, n int) *narrow { return &narrow{kind, make([]float32, n)} }
func newWide(kind element.Kind, n int) *wide     { return &wide{kind, make([]float64, n)} }

func (r *narrow) add(first, end int, g []byte, limit float64, mask []uint64) {
	e, tau := r.e[first:end], atLeastSmallest(limit)
	switch r.kind {
	case element.Float16:
		vector.AddFloat16(e, g, tau, mask)
	case element.BFloat16:
		vector.AddBFloat16(e, g, tau, mask)
	default:
		vector.AddFloat32(e, g, tau, mask)
	}
}

func (r *wide) add(first, end int, g []byte, limit float64, mask []uint64) {
	e := r.e[first:end]
	switch r.kind {
	case element.Float64:
		vector.AddFloat64(e, g, limit, mask)
	case element.Float32:
		vector.AddFloat32To64(e, g, limit, mask)
	case element.Float16:
		vector.AddFloat16To64(e, g, limit, mask)
	default:
		vector.AddBFloat16To64(e, g, limit, mask)
	}
}

// atLeastSmallest is the limit as float32, where the least positive number is
// another one.
func atLeastSmallest(limit float64) float32 {
	return max(float32(limit), math.SmallestNonzeroFloat32)
}

func (r *narrow) compare(limit float64, mask []uint64) {
	vector.CompareFloat32(r.e, atLeastSmallest(limit), mask)
}
func (r *wide) compare(limit float64, mask []uint64) { vector.CompareFloat64(r.e, limit, mask) }

func (r *narrow) choose(s *vector.Selector, sparsity float64) float64 {
	return float64(s.SelectFloat32(r.e, sparsity))
}
func (r *wide) choose(s *vector.Selector, sparsity float64) float64 {
	return s.SelectFloat64(r.e, sparsity)
}

func (r *narrow) take(first int, mask []uint64, dst []byte) (values []byte, nonFinite int) {
	e := r.e[first:]
	switch r.kind {
	case element.Float16:
		return take(e, mask, dst, func(dst []byte, v float32) ([]byte, float32) {
			h := element.ToFloat16(v)
			return binary.LittleEndian.AppendUint16(dst, h), element.FromFloat16(h)
		})
	case element.BFloat16:
		return take(e, mask, dst, func(dst []byte, v float32) ([]byte, float32) {
			h := element.ToBFloat16(v)
			return binary.LittleEndian.AppendUint16(dst, h), element.FromBFloat16(h)
		})
	default:
		return takeFloat32(e, mask, dst)
	}
}

func (r *wide) take(first int, mask []uint64, dst []byte) (values []byte, nonFinite int) {
	e := r.e[first:]
	switch r.kind {
	case element.Float64:
		return take(e, mask, dst, func(dst []byte, v float64) ([]byte, float64) {
			return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v)), v
		})
	case element.Float32:
		return take(e, mask, dst, func(dst []byte, v float64) ([]byte, float64) {
			f := element.ToFloat32(v)
			return binary.LittleEndian.AppendUint32(dst, math.Float32bits(f)), float64(f)
		})
	default:
		return take(e, mask, dst, func(dst []byte, v float64) ([]byte, float64) {
			dst = append(dst, 0, 0)
			last := dst[len(dst)-2:]
			r.kind.Put(last, 0, v)
			return dst, r.kind.At(last, 0)
		})
	}
}

// takeFloat32 is take where residual and values are of one kind, so that nothing
// is left; the common case.
func takeFloat32(e []float32, mask []uint64, dst []byte) (values []byte, nonFinite int) {
	for i, w := range mask {
		if w == 0 {
			continue
		}
		part := e[i*64:]
		for ; w != 0; w &= w - 1 {
			v := &part[bits.TrailingZeros64(w)]
			b := math.Float32bits(*v)
			if b<<1 >= 0xff<<24 {
				nonFinite++
			}
			dst = binary.LittleEndian.AppendUint32(dst, b)
			*v = 0
		}
	}
	return dst, nonFinite
}

// take is residual.take; round appends a number in the layer's kind and returns
// what that stands for.
func take[R vector.Float](e []R, mask []uint64, dst []byte, round func([]byte, R) ([]byte, R)) (values []byte, nonFinite int) {
	for i, w := range mask {
		for ; w != 0; w &= w - 1 {
			v := &e[i*64+bits.TrailingZeros64(w)]
			var sent R
			if dst, sent = round(dst, *v); *v-*v != 0 {
				nonFinite++
				*v = 0
				continue
			}
			*v -= sent
		}
	}
	return dst, nonFinite
}

func (r *narrow) gather(w *Workspace, at []uint32) residual {
	w.narrow.kind, w.narrow.e = r.kind, slices.Grow(w.narrow.e[:0], len(at))[:len(at)]
	for i, p := range at {
		w.narrow.e[i] = r.e[p]
	}
	return &w.narrow
}

func (r *wide) gather(w *Workspace, at []uint32) residual {
	w.wide.kind, w.wide.e = r.kind, slices.Grow(w.wide.e[:0], len(at))[:len(at)]
	for i, p := range at {
		w.wide.e[i] = r.e[p]
	}
	return &w.wide
}

func (r *narrow) scatter(part residual, at []uint32) {
	for i, v := range part.(*narrow).e {
		r.e[at[i]] = v
	}
}

func (r *wide) scatter(part residual, at []uint32) {
	for i, v := range part.(*wide).e {
		r.e[at[i]] = v
	}
}

func (r *narrow) grow(n int) { r.e = append(r.e, make([]float32, n)...) }
func (r *wide) grow(n int)   { r.e = append(r.e, make([]float64, n)...) }

func (r *narrow) measure() (count int, squares float64) { return measure(r.e) }
func (r *wide) measure() (count int, squares float64)   { return measure(r.e) }

func measure[R vector.Float](e []R) (count int, squares float64) {
	for _, v := range e {
		if v != 0 {
			count++
			squares += float64(v) * float64(v)
		}
	}
	return count, squares
}

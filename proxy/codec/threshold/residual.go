package threshold

import (
	"math"
	"slices"
	"unsafe"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// residual holds what was not sent of a layer's gradients, in one of two precisions. Limits
// are float64, which holds the numbers of both.
type residual interface {
	// add adds a gradient to the numbers first..end and compares, as
	// vector.AddFloat32.
	add(first, end int, g []byte, limit float64, mask []uint64, at []uint32) []uint32
	// sum returns what number i will be once g is added. It changes nothing.
	sum(i int, g []byte) float64
	// compare compares all numbers, as vector.CompareFloat32.
	compare(limit float64, mask []uint64, at []uint32) []uint32
	// keep removes from at and mask the positions of numbers below the limit.
	keep(at []uint32, limit float64, mask []uint64) []uint32
	// choose returns the threshold for a sparsity. among does, too, but looks only at the
	// numbers at these positions: ok is false if the threshold is one of the others, all of
	// which are smaller.
	choose(s *vector.Selector, sparsity float64) float64
	among(s *vector.Selector, at []uint32, sparsity float64) (tau float64, ok bool)
	// take appends the numbers at the positions to dst, in the layer's kind, and leaves of
	// each what rounding to that kind took, so that nothing is lost. nonFinite of them are
	// NaN or infinite and leave nothing.
	take(w *Workspace, at []uint32, dst []byte) (values []byte, nonFinite int)
	// gather returns a copy of the numbers at the positions, in the workspace.
	gather(w *Workspace, at []uint32) residual
	// slice returns n of the numbers themselves, from the first on, in the workspace.
	slice(w *Workspace, first, n int) residual
	// scatter is the reverse of gather: it writes such a copy back.
	scatter(part residual, at []uint32)
	// grow adds n zeros.
	grow(n int)
	// move copies the numbers to other memory and keeps them there from then on.
	move(to []byte)
	// bytes returns the memory of the numbers, in the machine's byte order.
	bytes() []byte
	// addBytes adds such numbers to those at the positions or, if at is nil, to all.
	addBytes(at []uint32, b []byte)
	// holds reports whether a number at a position in [from, to) is not zero.
	holds(from, to int) bool
	// takeBytes appends such numbers at the positions and sets them to zero.
	takeBytes(dst []byte, at []uint32) []byte
	// measure counts the numbers that are not zero and sums their squares.
	measure(stride int) (count int, squares float64)
}

// narrow is a residual of float32 numbers.
type narrow struct {
	kind element.Kind
	e    []float32
}

// wide is a residual of float64 numbers.
type wide struct {
	e []float64
}

func newNarrow(kind element.Kind, n int) *narrow { return &narrow{kind, inLargePages[float32](n)} }
func newWide(n int) *wide                        { return &wide{inLargePages[float64](n)} }

func (r *narrow) add(first, end int, g []byte, limit float64, mask []uint64, at []uint32) []uint32 {
	e, tau := r.e[first:end], atLeastSmallest(limit)
	switch r.kind {
	case element.Float16:
		return vector.AddFloat16(e, g, tau, mask, at, first)
	case element.BFloat16:
		return vector.AddBFloat16(e, g, tau, mask, at, first)
	default:
		return vector.AddFloat32(e, g, tau, mask, at, first)
	}
}

func (r *wide) add(first, end int, g []byte, limit float64, mask []uint64, at []uint32) []uint32 {
	return vector.AddFloat64(r.e[first:end], g, limit, mask, at, first)
}

func (r *narrow) sum(i int, g []byte) float64 {
	return float64(r.e[i] + float32(r.kind.At(g, i)))
}
func (r *wide) sum(i int, g []byte) float64 { return r.e[i] + element.Float64.At(g, i) }

// atLeastSmallest returns the limit as a float32. The least positive number of float64
// rounds to zero there, so that float32's takes its place.
func atLeastSmallest(limit float64) float32 {
	return max(float32(limit), math.SmallestNonzeroFloat32)
}

func (r *narrow) compare(limit float64, mask []uint64, at []uint32) []uint32 {
	return vector.Compare(r.e, atLeastSmallest(limit), mask, at, 0)
}

func (r *wide) compare(limit float64, mask []uint64, at []uint32) []uint32 {
	return vector.Compare(r.e, limit, mask, at, 0)
}

func (r *narrow) keep(at []uint32, limit float64, mask []uint64) []uint32 {
	return keep(r.e, at, atLeastSmallest(limit), mask)
}

func (r *wide) keep(at []uint32, limit float64, mask []uint64) []uint32 {
	return keep(r.e, at, limit, mask)
}

// keep removes from at and mask the positions of numbers below the limit. It has no branch
// that depends on the numbers, which a processor could not predict.
func keep[R vector.Float](e []R, at []uint32, limit R, mask []uint64) []uint32 {
	kept := 0
	for _, i := range at {
		at[kept] = i
		below := uint64(0)
		if v := R(math.Abs(float64(e[i]))); v < limit {
			below = 1
		}
		kept += int(1 - below)
		mask[i/64] &^= below << (i % 64)
	}
	return at[:kept]
}

func (r *narrow) choose(s *vector.Selector, sparsity float64) float64 {
	return float64(s.SelectFloat32(r.e, sparsity))
}
func (r *wide) choose(s *vector.Selector, sparsity float64) float64 {
	return s.SelectFloat64(r.e, sparsity)
}

func (r *narrow) among(s *vector.Selector, at []uint32, sparsity float64) (float64, bool) {
	tau, ok := s.AmongFloat32(r.e, at, sparsity)
	return float64(tau), ok
}
func (r *wide) among(s *vector.Selector, at []uint32, sparsity float64) (float64, bool) {
	return s.AmongFloat64(r.e, at, sparsity)
}

func (r *narrow) gather(w *Workspace, at []uint32) residual {
	w.narrow.kind, w.narrow.e = r.kind, slices.Grow(w.narrow.e[:0], len(at))[:len(at)]
	for i, p := range at {
		w.narrow.e[i] = r.e[p]
	}
	return &w.narrow
}

func (r *wide) gather(w *Workspace, at []uint32) residual {
	w.wide.e = slices.Grow(w.wide.e[:0], len(at))[:len(at)]
	for i, p := range at {
		w.wide.e[i] = r.e[p]
	}
	return &w.wide
}

// run is some successive numbers of a residual. It is not the workspace's narrow or wide,
// whose memory gather reuses.
type run struct {
	narrow narrow
	wide   wide
}

func (r *narrow) slice(w *Workspace, first, n int) residual {
	w.run.narrow = narrow{r.kind, r.e[first : first+n : first+n]}
	return &w.run.narrow
}

func (r *wide) slice(w *Workspace, first, n int) residual {
	w.run.wide = wide{r.e[first : first+n : first+n]}
	return &w.run.wide
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

func (r *narrow) move(to []byte) { r.e = moved(r.e, to) }
func (r *wide) move(to []byte)   { r.e = moved(r.e, to) }

func moved[R vector.Float](e []R, to []byte) []R {
	there := unsafe.Slice((*R)(unsafe.Pointer(unsafe.SliceData(to))), len(to)/int(unsafe.Sizeof(R(0))))
	return there[:copy(there, e)]
}

func (r *narrow) measure(stride int) (count int, squares float64) { return measure(r.e, stride) }
func (r *wide) measure(stride int) (count int, squares float64)   { return measure(r.e, stride) }

// measure looks at every stride-th number. It squares in float64, so that a residual of millions
// of numbers adds up.
func measure[R vector.Float](e []R, stride int) (count int, squares float64) {
	for i := 0; i < len(e); i += stride {
		if v := float64(e[i]); v != 0 {
			count++
			squares += v * v
		}
	}
	return count, squares
}

func (r *narrow) bytes() []byte { return memoryOf(r.e) }
func (r *wide) bytes() []byte   { return memoryOf(r.e) }

func (r *narrow) addBytes(at []uint32, b []byte) { addBytes(r.e, at, b) }
func (r *wide) addBytes(at []uint32, b []byte)   { addBytes(r.e, at, b) }

// addBytes copies the bytes to aligned memory first: they may come from anywhere in a
// file.
func addBytes[R vector.Float](e []R, at []uint32, b []byte) {
	added := make([]R, len(b)/int(unsafe.Sizeof(*new(R))))
	copy(memoryOf(added), b)
	for i, v := range added {
		if at == nil {
			e[i] += v
		} else {
			e[at[i]] += v
		}
	}
}

func (r *narrow) holds(from, to int) bool { return holds(r.e[from:to]) }
func (r *wide) holds(from, to int) bool   { return holds(r.e[from:to]) }

func holds[R vector.Float](e []R) bool {
	return slices.ContainsFunc(e, func(v R) bool { return v != 0 })
}

func (r *narrow) takeBytes(dst []byte, at []uint32) []byte { return takeBytes(r.e, dst, at) }
func (r *wide) takeBytes(dst []byte, at []uint32) []byte   { return takeBytes(r.e, dst, at) }

func takeBytes[R vector.Float](e []R, dst []byte, at []uint32) []byte {
	taken := make([]R, len(at))
	for i, p := range at {
		taken[i], e[p] = e[p], 0
	}
	return append(dst, memoryOf(taken)...)
}

func memoryOf[R vector.Float](e []R) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(e))), len(e)*int(unsafe.Sizeof(*new(R))))
}

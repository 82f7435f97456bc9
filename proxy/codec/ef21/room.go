package ef21

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// room is scratch memory for one chunk at a time. The slices that its methods return
// are valid until the next call.
type room struct {
	d    []float32
	mask []uint64
	at   []uint32
	wide []byte // numbers of 16 bits as float32
}

// subtract returns the differences x - w of a chunk as float32 numbers. As
// [vector.SubtractFloat32] it sets mask and appends to at where these are not below tau.
// Differences of float64 are computed in float64 and rounded once.
func (r *room) subtract(kind element.Kind, x, w []byte, tau float32, mask []uint64, at []uint32, first int) (d []float32, _ []uint32) {
	n := len(x) / kind.Size()
	r.d, mask = slices.Grow(r.d[:0], n)[:n], mask[:(n+63)/64]
	if kind == element.Float32 {
		return r.d, vector.SubtractFloat32(r.d, x, w, tau, mask, at, first)
	}
	if kind == element.Float64 {
		for i := range r.d {
			r.d[i] = element.ToFloat32(element.Float64.At(x, i) - element.Float64.At(w, i))
		}
		return r.d, vector.Compare(r.d, tau, mask, at, first)
	}
	widen := vector.FromFloat16
	if kind == element.BFloat16 {
		widen = vector.FromBFloat16
	}
	r.wide = slices.Grow(r.wide[:0], 8*n)[:8*n]
	widen(r.wide[:4*n], x)
	widen(r.wide[4*n:], w)
	return r.d, vector.SubtractFloat32(r.d, r.wide[:4*n], r.wide[4*n:], tau, mask, at, first)
}

// addNumbers adds the float32 numbers of back to w, numbers of a kind. It must round as
// addAt does.
func (r *room) addNumbers(kind element.Kind, w, back []byte) {
	n := len(w) / kind.Size()
	if floats, ok := floatsOf(w); ok && kind == element.Float32 {
		// AddFloat32 also compares. With infinity it finds next to nothing, which is
		// the cheapest.
		r.mask = slices.Grow(r.mask[:0], (n+63)/64)[:(n+63)/64]
		r.at = vector.AddFloat32(floats, back, float32(math.Inf(1)), r.mask, r.at[:0], 0)
		return
	}
	for i := range n {
		addTo(kind, w, i, element.Float32.At(back, i))
	}
}

// addAt adds float32 numbers to those at the positions of w, numbers of a kind. Both
// ends of a link run it, and must get the same bits: each sum is rounded once.
func addAt(kind element.Kind, w []byte, at []uint32, back []byte) {
	if kind != element.Float32 {
		for j, i := range at {
			addTo(kind, w, int(i), element.Float32.At(back, j))
		}
		return
	}
	for _, i := range at {
		number := w[4*i : 4*i+4]
		sum := math.Float32frombits(binary.LittleEndian.Uint32(number)) + math.Float32frombits(binary.LittleEndian.Uint32(back))
		binary.LittleEndian.PutUint32(number, math.Float32bits(sum))
		back = back[4:]
	}
}

// addTo adds by to number i of w, rounded once to its kind.
func addTo(kind element.Kind, w []byte, i int, by float64) {
	sum := kind.At(w, i) + by
	if kind == element.Float32 {
		sum = float64(float32(sum)) // as the addition of two of them does it
	}
	kind.Put(w, i, sum)
}

// bytesOf returns numbers as bytes, in the order of little-endian machines, the only ones
// that psidecar is built for.
func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// floatsOf is the reverse; ok is false if the bytes are not aligned.
func floatsOf(b []byte) (v []float32, ok bool) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%4 != 0 {
		return nil, false
	}
	return unsafe.Slice((*float32)(p), len(b)/4), true
}

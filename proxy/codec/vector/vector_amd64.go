package vector

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

//go:generate go run ./gen -out avx2_amd64.s -stubs avx2_amd64.go -pkg vector

// assembly is whether this processor has what the assembly needs; half, whether it converts
// float16 as well.
var (
	assembly = cpu.X86.HasAVX2 && cpu.X86.HasBMI1 && cpu.X86.HasPOPCNT
	half     = assembly && cpu.X86.HasF16C
)

// step is how many numbers the residual's assembly does at a time: a word of the mask.
const step = 64

// whole is how many of n numbers the assembly does.
func whole(n int, able bool) int {
	if !able {
		return 0
	}
	return n &^ (step - 1)
}

// room makes room in at for the positions of n numbers, and for those that the assembly
// writes in advance and overwrites.
func room(at []uint32, n int) []uint32 { return slices.Grow(at, n+8) }

// Each of these functions does a number of numbers from the first on and returns how many.
// They index the last element that the assembly will touch, so that a slice that is too
// short panics here rather than corrupting memory.

func addFloat32(e []float32, g []byte, tau float32, mask []uint64, at []uint32, first int) ([]uint32, int) {
	return adding(e, g, 4, tau, mask, at, first, assembly, addFloat32AVX2)
}

func addFloat16(e []float32, g []byte, tau float32, mask []uint64, at []uint32, first int) ([]uint32, int) {
	return adding(e, g, 2, tau, mask, at, first, half, addFloat16AVX2)
}

func addBFloat16(e []float32, g []byte, tau float32, mask []uint64, at []uint32, first int) ([]uint32, int) {
	return adding(e, g, 2, tau, mask, at, first, assembly, addBFloat16AVX2)
}

func addFloat64(e []float64, g []byte, tau float64, mask []uint64, at []uint32, first int) ([]uint32, int) {
	return adding(e, g, 8, tau, mask, at, first, assembly, addFloat64AVX2)
}

// adding calls an adder's assembly by for as many numbers as fill whole words of the
// mask, and returns the positions and how many numbers that were; the portable code
// does the rest. The positions are appended to at, in its spare capacity.
func adding[R Float](e []R, g []byte, size int, tau R, mask []uint64, at []uint32, first int, able bool,
	by func(e *R, g *byte, n int, tau R, mask *uint64, at *uint32, first uint32) int,
) ([]uint32, int) {
	n := whole(len(e), able)
	if n == 0 {
		return at, 0
	}
	// The assembly checks no bounds.
	_, _ = g[n*size-1], mask[n/64-1]
	at = room(at, n)
	found := by(unsafe.SliceData(e), unsafe.SliceData(g), n, tau, unsafe.SliceData(mask), unsafe.SliceData(at[len(at):cap(at)]), uint32(first))
	return at[:len(at)+found], n
}

func subtractFloat32(d []float32, x, w []byte, tau float32, mask []uint64, at []uint32, first int) ([]uint32, int) {
	n := whole(len(d), assembly)
	if n == 0 {
		return at, 0
	}
	_, _, _ = x[n*4-1], w[n*4-1], mask[n/64-1]
	at = room(at, n)
	found := subtractFloat32AVX2(unsafe.SliceData(d), unsafe.SliceData(x), unsafe.SliceData(w), n, tau,
		unsafe.SliceData(mask), unsafe.SliceData(at[len(at):cap(at)]), uint32(first))
	return at[:len(at)+found], n
}

// maxMagnitude returns the largest magnitude's bits among the first done numbers.
// Bits of magnitudes are ordered as the numbers, see MaxMagnitude.
func maxMagnitude(values []byte, size int) (done int, most uint64) {
	n := whole(len(values)/size, assembly)
	if n == 0 {
		return 0, 0
	}
	first := unsafe.SliceData(values)
	switch size {
	case 2:
		return n, uint64(maxMagnitude16AVX2(first, n))
	case 4:
		return n, uint64(maxMagnitude32AVX2(first, n))
	default:
		return n, maxMagnitude64AVX2(first, n)
	}
}

func quantize(dst, values []byte, bits int, r rounding, random Random, first uint32) int {
	n := whole(len(values)/4, assembly)
	if n == 0 {
		return 0
	}
	_ = dst[n/8*bits+7]
	if bits == 8 {
		quantize8AVX2(unsafe.SliceData(dst), unsafe.SliceData(values), n, r.scale, r.base, random.a, random.b, first, r.most*0x01010101)
	} else {
		quantizeAVX2(unsafe.SliceData(dst), unsafe.SliceData(values), n, r.scale, r.base, random.a, random.b, first, r.most*0x01010101,
			bits, (*byte)(unsafe.Pointer(&packings[bits])))
	}
	return n
}

func nearest(dst, values []byte, bits int, r rounding) int {
	n := whole(len(values)/4, assembly)
	if n == 0 {
		return 0
	}
	_ = dst[n/8*bits+7]
	if bits == 8 {
		nearest8AVX2(unsafe.SliceData(dst), unsafe.SliceData(values), n, r.scale, r.base+aHalf, r.most*0x01010101)
	} else {
		nearestAVX2(unsafe.SliceData(dst), unsafe.SliceData(values), n, r.scale, r.base+aHalf, r.most*0x01010101,
			bits, (*byte)(unsafe.Pointer(&packings[bits])))
	}
	return n
}

// dequantize does as many numbers as it may: see Dequantize for what it reads.
func dequantize(kind element.Kind, values, codes []byte, bits int, unit float64, offset float32) int {
	n := len(values) / kind.Size() &^ 7
	// The assembly loads 8 bytes for every 8 codes. Groups whose load would cross the end
	// are left to the portable code.
	if beyond := n/8*bits + 8 - bits - len(codes); beyond > 0 { // what would be read beyond the end
		n -= (beyond + bits - 1) / bits * 8
	}
	if !assembly || kind == element.Float16 && !half || n <= 0 {
		return 0
	}
	_ = values[n*kind.Size()-1]
	to, from, unpack := unsafe.SliceData(values), unsafe.SliceData(codes), (*byte)(unsafe.Pointer(&unpackings[bits]))
	switch kind {
	case element.Float32:
		dequantizeFloat32AVX2(to, from, n, float32(unit), offset, bits, unpack)
	case element.Float64:
		dequantizeFloat64AVX2(to, from, n, unit, offset, bits, unpack)
	case element.Float16:
		dequantizeFloat16AVX2(to, from, n, float32(unit), offset, bits, unpack)
	default:
		dequantizeBFloat16AVX2(to, from, n, float32(unit), offset, bits, unpack)
	}
	return n
}

func differ4(a, b []byte, mask []uint64) int {
	n := whole(len(a)/4, assembly)
	if n > 0 {
		_, _ = b[n*4-1], mask[n/64-1]
		differ4AVX2(unsafe.SliceData(a), unsafe.SliceData(b), n, unsafe.SliceData(mask))
	}
	return n
}

// These do eight numbers at a time: a vector, as they are called for short parts as
// well.
func roundToFloat16(dst []byte, v []float32) (done, nonFinite int) {
	n := len(v) &^ 7
	if n == 0 || !half {
		return 0, 0
	}
	_ = dst[n*2-1]
	return n, roundToFloat16AVX2(unsafe.SliceData(dst), unsafe.SliceData(v), n)
}

func roundToBFloat16(dst []byte, v []float32) (done, nonFinite int) {
	n := len(v) &^ 7
	if n == 0 || !assembly {
		return 0, 0
	}
	_ = dst[n*2-1]
	return n, roundToBFloat16AVX2(unsafe.SliceData(dst), unsafe.SliceData(v), n)
}

func fromFloat16(dst, src []byte) int {
	n := len(src) / 2 &^ 7
	if n == 0 || !half {
		return 0
	}
	_ = dst[n*4-1]
	fromFloat16AVX2(unsafe.SliceData(dst), unsafe.SliceData(src), n)
	return n
}

func fromBFloat16(dst, src []byte) int {
	n := len(src) / 2 &^ 7
	if n == 0 || !assembly {
		return 0
	}
	_ = dst[n*4-1]
	fromBFloat16AVX2(unsafe.SliceData(dst), unsafe.SliceData(src), n)
	return n
}

// sumBytes is how many bytes the assembly adds at a time.
const sumBytes = 128

// sumFloat and sumInt return how many bytes they have added. Sums of 16-bit floats
// have no assembly.
func sumFloat(kind element.Kind, dst, src []byte) (done int) {
	switch kind {
	case element.Float32:
		return summing(dst, src, sumFloat32AVX2)
	case element.Float64:
		return summing(dst, src, sumFloat64AVX2)
	}
	return 0
}

func sumInt(size int, dst, src []byte) (done int) {
	switch size {
	case 1:
		return summing(dst, src, sumInt8AVX2)
	case 2:
		return summing(dst, src, sumInt16AVX2)
	case 4:
		return summing(dst, src, sumInt32AVX2)
	}
	return summing(dst, src, sumInt64AVX2)
}

func summing(dst, src []byte, by func(dst, src *byte, n int)) (done int) {
	n := len(dst) &^ (sumBytes - 1)
	if !assembly || n == 0 {
		return 0
	}
	_ = src[n-1]
	by(unsafe.SliceData(dst), unsafe.SliceData(src), n)
	return n
}

// eights returns how many of the float32 numbers the assembly for rows does.
func eights(values []byte) int {
	if !assembly {
		return 0
	}
	return len(values) / 4 &^ 7
}

func scale32(values []byte) (done int, sum float32, most uint32) {
	n := eights(values)
	if n > 0 {
		sum, most = scale32AVX2(unsafe.SliceData(values), n)
	}
	return n, sum, most
}

func countAbove32(values []byte, below uint32) (done, count int) {
	n := eights(values)
	if n > 0 {
		count = countAbove32AVX2(unsafe.SliceData(values), n, below)
	}
	return n, count
}

// maskAbove32 does rows that begin at a byte of the mask; others, of widths that are not a
// multiple of 8, are left to the portable code.
func maskAbove32(mask []uint64, first int, values []byte, below uint32) (done int) {
	n := eights(values)
	if n == 0 || first%8 != 0 {
		return 0
	}
	_ = mask[(first+n-1)/64]
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(mask))), 8*len(mask))
	maskAbove32AVX2(&bytes[first/8], unsafe.SliceData(values), n, below)
	return n
}

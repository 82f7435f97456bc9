package vector

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go run ./gen -out avx2_amd64.s -stubs avx2_amd64.go -pkg vector

// assembly tells whether this processor has what the assembly needs; half,
// whether it converts float16 too.
var (
	assembly = cpu.X86.HasAVX2
	half     = cpu.X86.HasAVX2 && cpu.X86.HasF16C
)

// step is how many numbers the assembly does at a time.
const step = 64

// whole is how many of n numbers the assembly does.
func whole(n int, able bool) int {
	if !able {
		return 0
	}
	return n &^ (step - 1)
}

// Each of these does as many numbers from the first on as it returns.

func addFloat32(e []float32, g []byte, tau float32, mask []uint64) int {
	n := whole(len(e), assembly)
	if n > 0 {
		_, _ = g[n*4-1], mask[n/64-1]
		addFloat32AVX2(unsafe.SliceData(e), unsafe.SliceData(g), n, tau, unsafe.SliceData(mask))
	}
	return n
}

func addFloat16(e []float32, g []byte, tau float32, mask []uint64) int {
	n := whole(len(e), half)
	if n > 0 {
		_, _ = g[n*2-1], mask[n/64-1]
		addFloat16AVX2(unsafe.SliceData(e), unsafe.SliceData(g), n, tau, unsafe.SliceData(mask))
	}
	return n
}

func addBFloat16(e []float32, g []byte, tau float32, mask []uint64) int {
	n := whole(len(e), assembly)
	if n > 0 {
		_, _ = g[n*2-1], mask[n/64-1]
		addBFloat16AVX2(unsafe.SliceData(e), unsafe.SliceData(g), n, tau, unsafe.SliceData(mask))
	}
	return n
}

func addFloat64(e []float64, g []byte, tau float64, mask []uint64) int {
	n := whole(len(e), assembly)
	if n > 0 {
		_, _ = g[n*8-1], mask[n/64-1]
		addFloat64AVX2(unsafe.SliceData(e), unsafe.SliceData(g), n, tau, unsafe.SliceData(mask))
	}
	return n
}

func addFloat32To64(e []float64, g []byte, tau float64, mask []uint64) int {
	n := whole(len(e), assembly)
	if n > 0 {
		_, _ = g[n*4-1], mask[n/64-1]
		addFloat32To64AVX2(unsafe.SliceData(e), unsafe.SliceData(g), n, tau, unsafe.SliceData(mask))
	}
	return n
}

func compareFloat32(e []float32, tau float32, mask []uint64) int {
	n := whole(len(e), assembly)
	if n > 0 {
		_ = mask[n/64-1]
		compareFloat32AVX2(unsafe.SliceData(e), n, tau, unsafe.SliceData(mask))
	}
	return n
}

func compareFloat64(e []float64, tau float64, mask []uint64) int {
	n := whole(len(e), assembly)
	if n > 0 {
		_ = mask[n/64-1]
		compareFloat64AVX2(unsafe.SliceData(e), n, tau, unsafe.SliceData(mask))
	}
	return n
}

func maxMagnitude(values []byte) (done int, bits uint32) {
	n := whole(len(values)/4, assembly)
	if n > 0 {
		bits = maxMagnitudeAVX2(unsafe.SliceData(values), n)
	}
	return n, bits
}

func quantize(codes, values []byte, scale, levels float32, r Random, first uint32) int {
	n := whole(len(codes), assembly)
	if n > 0 {
		_ = values[n*4-1]
		quantizeAVX2(unsafe.SliceData(codes), unsafe.SliceData(values), n, scale, levels, r.a, r.b, first)
	}
	return n
}

func dequantize(values, codes []byte, unit float32, levels int) int {
	n := whole(len(codes), assembly)
	if n > 0 {
		_ = values[n*4-1]
		dequantizeAVX2(unsafe.SliceData(values), unsafe.SliceData(codes), n, unit, uint32(levels))
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

func differ8(a, b []byte, mask []uint64) int {
	n := whole(len(a)/8, assembly)
	if n > 0 {
		_, _ = b[n*8-1], mask[n/64-1]
		differ8AVX2(unsafe.SliceData(a), unsafe.SliceData(b), n, unsafe.SliceData(mask))
	}
	return n
}

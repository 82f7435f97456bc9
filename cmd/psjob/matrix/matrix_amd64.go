package matrix

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go run ./gen -out avx2_amd64.s -stubs avx2_amd64.go -pkg matrix

// assembly tells whether this processor has what the assembly needs.
var assembly = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// step is how many columns the assembly does at a time.
const step = 16

// dotsVector is dots for as many columns from the first on as it returns.
func dotsVector(sums *[lanes]float32, w, x []float32) int {
	n := len(w) &^ (step - 1)
	if n == 0 || !assembly {
		*sums = [lanes]float32{}
		return 0
	}
	_ = x[lanes*len(w)-1]
	dotsAVX2(sums, unsafe.SliceData(w), unsafe.SliceData(x), 4*len(w), n)
	return n
}

// combineVector is combine for as many columns from the first on as it returns.
func combineVector(y []float32, factors *[lanes]float32, x []float32) int {
	n := len(y) &^ (step - 1)
	if n == 0 || !assembly {
		return 0
	}
	_ = x[lanes*len(y)-1]
	combineAVX2(unsafe.SliceData(y), factors, unsafe.SliceData(x), 4*len(y), n)
	return n
}

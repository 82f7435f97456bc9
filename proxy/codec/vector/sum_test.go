package vector

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Sums are those of one number after the other, at any length and alignment, with
// what is not finite among them.
func TestSumFloatIsThatOfOneAfterTheOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	odd := []float64{math.Inf(1), math.Inf(-1), math.NaN(), 0, math.Copysign(0, -1), 1e-45, 65504, 3e38}
	for _, kind := range []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16} {
		for n := range 200 {
			at, size := rng.IntN(8), kind.Size()
			dst, src := make([]byte, at+n*size)[at:], make([]byte, at+1+n*size)[at+1:]
			for _, b := range [][]byte{dst, src} {
				for i := range n {
					v := rng.NormFloat64()
					if rng.IntN(8) == 0 {
						v = odd[rng.IntN(len(odd))]
					}
					kind.Put(b, i, v)
				}
			}
			want := make([]byte, n*size)
			for i := range n {
				a, b := kind.At(dst, i), kind.At(src, i)
				sum := a + b
				if kind != element.Float64 { // which may overflow, to infinity
					sum = float64(float32(sum))
				}
				kind.Put(want, i, sum)
			}
			SumFloat(kind, dst, src)
			for i := range n {
				got, want := kind.At(dst, i), kind.At(want, i)
				if got != want && !(got != got && want != want) || math.Signbit(got) != math.Signbit(want) && got == got {
					t.Fatalf("%v, number %d of %d: %v, want %v", kind, i, n, got, want)
				}
			}
		}
	}
}

func TestSumInt(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for _, size := range []int{1, 2, 4, 8} {
		for n := range 300 {
			dst, src, want := make([]byte, n*size), make([]byte, n*size), make([]byte, n*size)
			for i := range dst {
				dst[i], src[i] = byte(rng.Uint32()), byte(rng.Uint32())
			}
			for i := 0; i < len(dst); i += size { // as at school
				carry := 0
				for j := i; j < i+size; j++ {
					sum := int(dst[j]) + int(src[j]) + carry
					want[j], carry = byte(sum), sum>>8
				}
			}
			SumInt(size, dst, src)
			if string(dst) != string(want) {
				t.Fatalf("%d integers of %d bytes: wrong sum", n, size)
			}
		}
	}
}

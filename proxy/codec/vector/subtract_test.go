package vector

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

func TestSubtractEqualsPortable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.IntRange(0, 400).Draw(t, "n")
		tau := float32(rapid.SampledFrom([]float64{0, 0.5, 1, 2, math.SmallestNonzeroFloat32, math.Inf(1), math.NaN()}).Draw(t, "tau"))
		x, w := numbers(rng, element.Float32, n), numbers(rng, element.Float32, n)
		want, wantMask := make([]float32, n), make([]uint64, (n+63)/64)
		wantAt := subtractPortable(want, x, w, tau, wantMask, []uint32{5}, 1000)
		d, mask := make([]float32, n), slices.Repeat([]uint64{77}, len(wantMask))
		at := SubtractFloat32(d, x, w, tau, mask, []uint32{5}, 1000)
		if !equalBits(d, want) || !slices.Equal(mask, wantMask) || !slices.Equal(at, wantAt) {
			t.Fatalf("n %d, tau %g: %v, %x, %d, want %v, %x, %d", n, tau, d, mask, at, want, wantMask, wantAt)
		}
		for i := range want {
			if by := float32(element.Float32.At(x, i)) - float32(element.Float32.At(w, i)); by != want[i] && by == by {
				t.Fatalf("difference %d is %g, want %g", i, want[i], by)
			}
		}
	})
}

// What is received of a number rounded to the nearest code is off by no more than
// half a step, nor by more than the number is; the assembly rounds as Go does.
func TestQuantizeNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.IntRange(1, 300).Draw(t, "n")
		scale := math.Ldexp(1, rapid.IntRange(-90, 100).Draw(t, "scale"))
		values := make([]byte, 4*n)
		for i := range n {
			element.Float32.Put(values, i, rng.NormFloat64()*scale*float64(rng.IntN(3)))
		}
		norm := float32(MaxMagnitude(element.Float32, values))
		if norm == 0 {
			return
		}
		bits := rapid.IntRange(2, 8).Draw(t, "bits")
		codes := QuantizeNearest([]byte{5}, values, bits, norm)
		if want := nearestPortable([]byte{5}, values, bits, newRounding(bits, norm)); !bytes.Equal(codes, want) {
			t.Fatalf("codes % x, want % x", codes, want)
		}
		got := make([]byte, len(values))
		Dequantize(element.Float32, got, codes[1:], bits, float64(norm))
		step := float64(norm) / float64(Levels(bits))
		for i := range n {
			v := element.Float32.At(values, i)
			if off := math.Abs(element.Float32.At(got, i) - v); off > step*0.5001 || off > math.Abs(v)*1.0001 {
				t.Fatalf("%d bits: %g of at most %g became %g", bits, v, norm, element.Float32.At(got, i))
			}
		}
	})
}

func TestSampleIsExactOfFew(t *testing.T) {
	var s Selector
	rng := rand.New(rand.NewPCG(7, 7))
	for _, n := range []int{1, 2, 19, 20, 21, 1000, sampled} {
		v := make([]float64, n)
		for i := range v {
			v[i] = rng.NormFloat64()
		}
		sorted := make([]float64, n)
		for i, x := range v {
			sorted[i] = math.Abs(x)
		}
		slices.Sort(sorted)
		for _, share := range []float64{0, 0.5, 0.95, 0.99} {
			want := 0.0
			if rank := int(float64(n) * share); rank > 0 {
				want = sorted[rank-1]
			}
			if got := s.Sample(n, share, func(i int) float64 { return v[i] }); got != want {
				t.Errorf("%v of %d numbers are below %g, want %g", share, n, got, want)
			}
		}
	}
}

func TestSampleOfMany(t *testing.T) {
	var s Selector
	rng := rand.New(rand.NewPCG(8, 8))
	v := make([]float64, 300_000)
	for i := range v {
		v[i] = rng.NormFloat64()
	}
	for _, share := range []float64{0.5, 0.9, 0.95} {
		tau, above := s.Sample(len(v), share, func(i int) float64 { return v[i] }), 0
		for _, x := range v {
			if math.Abs(x) >= tau {
				above++
			}
		}
		if got, want := float64(above)/float64(len(v)), 1-share; got < want*0.8 || got > want*1.25 {
			t.Errorf("%v of the numbers are above, want %v", got, want)
		}
	}
}

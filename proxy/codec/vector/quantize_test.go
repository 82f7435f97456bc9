package vector

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

func TestQuantizeEqualsPortable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.IntRange(0, 300).Draw(t, "n")
		scale := math.Ldexp(1, rapid.IntRange(-90, 100).Draw(t, "scale"))
		values := make([]byte, 4*n)
		for i := range n {
			element.Float32.Put(values, i, rng.NormFloat64()*scale*float64(rng.IntN(3)))
		}
		norm := MaxMagnitude(values)
		if want := math.Float32frombits(maxMagnitudePortable(values)); norm != want {
			t.Fatalf("largest magnitude %g, want %g", norm, want)
		}
		if norm == 0 {
			return
		}
		bits := rapid.IntRange(1, 8).Draw(t, "bits")
		random, first := NewRandom(rng.Uint64()), rng.Uint32()
		codes := Quantize([]byte{5}, values, bits, norm, random, first)
		want := quantizePortable([]byte{5}, values, bits, newRounding(bits, norm), random, first)
		if !bytes.Equal(codes, want) {
			t.Fatalf("codes % x, want % x", codes, want)
		}
		if got, want := len(codes), 1+(n*bits+7)/8; got != want {
			t.Fatalf("%d bytes, want %d", got, want)
		}
		codes = slices.Clip(codes[1:]) // reading beyond would be seen
		got, literal := make([]byte, 4*n), make([]byte, 4*n)
		Dequantize(got, codes, bits, norm)
		for i := range n {
			v := norm / float32(Levels(bits)) * float32(int(unpackPortable(codes, bits, i))-Levels(bits))
			if bits == 1 {
				v = [2]float32{-norm, norm}[unpackPortable(codes, bits, i)]
			}
			binary.LittleEndian.PutUint32(literal[4*i:], math.Float32bits(v))
		}
		if !bytes.Equal(got, literal) {
			t.Fatal("values differ")
		}
	})
}

func TestMaxMagnitudeSeesAll(t *testing.T) {
	for n := range 200 {
		values := make([]byte, 4*n)
		for i := range n {
			element.Float32.Put(values, i, -3)
			if got := MaxMagnitude(values); got != 3 {
				t.Fatalf("-3 at %d of %d: %g", i, n, got)
			}
			element.Float32.Put(values, i, math.NaN())
			if got := MaxMagnitude(values); got == got {
				t.Fatalf("NaN at %d of %d: %g", i, n, got)
			}
			element.Float32.Put(values, i, 0)
		}
	}
}

// The random numbers look like what they should be: each twentieth of [0, 1)
// gets its share, for one seed and for the first numbers of many.
func TestRandomIsEven(t *testing.T) {
	const n, parts = 200_000, 20
	for name, at := range map[string]func(i int) float32{
		"one seed":   func(i int) float32 { return float32(NewRandom(1).At(uint32(i))) * 0x1p-23 },
		"many seeds": func(i int) float32 { return float32(NewRandom(uint64(i/2)).At(uint32(i%2))) * 0x1p-23 },
	} {
		var counts [parts]int
		repeated := 0
		before := float32(-1)
		for i := range n {
			u := at(i)
			if u < 0 || u >= 1 {
				t.Fatalf("%s: %g", name, u)
			}
			counts[int(u*parts)]++
			if int(before*parts) == int(u*parts) {
				repeated++
			}
			before = u
		}
		squares := 0.0
		for _, c := range counts {
			squares += math.Pow(float64(c)-n/parts, 2) / (n / parts)
		}
		if squares > 50 { // chi squared with 19 degrees of freedom: 1 in 10^4
			t.Errorf("%s: chi squared %.1f of %v", name, squares, counts)
		}
		if want := float64(n) / parts; math.Abs(float64(repeated)-want) > 5*math.Sqrt(want) {
			t.Errorf("%s: %d numbers fell where the one before did, want about %.0f", name, repeated, want)
		}
	}
}

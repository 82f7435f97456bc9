package vector

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

var kinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

func TestQuantizeEqualsPortable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.IntRange(0, 300).Draw(t, "n")
		scale := math.Ldexp(1, rapid.IntRange(-90, 100).Draw(t, "scale"))
		values := make([]byte, 4*n)
		for i := range n {
			element.Float32.Put(values, i, rng.NormFloat64()*scale*float64(rng.IntN(3)))
		}
		norm := float32(MaxMagnitude(element.Float32, values))
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
	})
}

// What codes stand for is what FORMAT.md says, rounded to the kind; a norm may
// be larger than the kind's numbers.
func TestDequantize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		bits, n := rapid.IntRange(1, 8).Draw(t, "bits"), rapid.IntRange(0, 300).Draw(t, "n")
		norm := math.Ldexp(1+rng.Float64(), rapid.IntRange(-1000, 1000).Draw(t, "exponent"))
		if kind != element.Float64 {
			norm = float64(float32(math.Ldexp(1+rng.Float64(), rapid.IntRange(-140, 126).Draw(t, "exponent of a float32"))))
		}
		codes := make([]byte, (n*bits+7)/8) // reading beyond would be seen
		for i := range codes {
			codes[i] = byte(rng.Uint32())
		}
		got, want := make([]byte, n*kind.Size()+1)[1:], make([]byte, n*kind.Size())
		Dequantize(kind, got, codes, bits, norm)
		for i := range n {
			place := float64(unpackPortable(codes, bits, i)) - float64(Levels(bits))
			v := norm / float64(Levels(bits)) * place
			if kind != element.Float64 {
				v = float64(float32(norm) / float32(Levels(bits)) * float32(place))
			}
			if bits == 1 {
				v = [2]float64{-norm, norm}[unpackPortable(codes, bits, i)]
			}
			kind.Put(want, i, v)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("% x, want % x", got, want)
		}
	})
}

func TestMaxMagnitudeSeesAll(t *testing.T) {
	for _, kind := range kinds {
		for n := range 200 {
			values := make([]byte, kind.Size()*n+1)[1:]
			for i := range n {
				for v, want := range map[float64]float64{-3: 3, 1: 1, math.Inf(-1): math.Inf(1)} {
					kind.Put(values, i, v)
					if got := MaxMagnitude(kind, values); got != want {
						t.Fatalf("%v: %g at %d of %d: %g", kind, v, i, n, got)
					}
				}
				kind.Put(values, i, math.NaN())
				if got := MaxMagnitude(kind, values); got == got {
					t.Fatalf("%v: NaN at %d of %d: %g", kind, i, n, got)
				}
				kind.Put(values, i, 0)
			}
		}
	}
}

// Among many numbers the largest is that of sorting, whatever their bits.
func TestMaxMagnitudeEqualsPortable(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, kind := range kinds {
		for n := range 300 {
			values := numbers(rng, kind, n)
			done, most := maxMagnitude(values, kind.Size())
			if want := maxMagnitudePortable(kind, values[:done*kind.Size()]); most != want {
				t.Fatalf("%v: of %d numbers %x, want %x", kind, done, most, want)
			}
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

package quantize

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

var allKinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

func bytesOf(kind element.Kind, numbers []float64) []byte {
	b := make([]byte, len(numbers)*kind.Size())
	for i, v := range numbers {
		kind.Put(b, i, v)
		numbers[i] = kind.At(b, i)
	}
	return b
}

func numbersOf(kind element.Kind, b []byte) []float64 {
	numbers := make([]float64, len(b)/kind.Size())
	for i := range numbers {
		numbers[i] = kind.At(b, i)
	}
	return numbers
}

func normal(rng *rand.Rand, n int, scale float64) []float64 {
	numbers := make([]float64, n)
	for i := range numbers {
		numbers[i] = rng.NormFloat64() * scale
	}
	return numbers
}

// passes encodes and decodes, and returns what came out and the wire's length.
func passes(t interface {
	Helper()
	Fatalf(string, ...any)
}, c Config, kind element.Kind, values []byte, seed uint64) ([]float64, int) {
	t.Helper()
	wire, _ := c.Append([]byte("before"), kind, values, seed)
	size := len(wire) - 6
	got, rest, err := Decode([]byte("12345678"), kind, len(values)/kind.Size(), append(wire[6:], "after"...))
	if err != nil {
		t.Fatalf("%+v, %v: %v", c, kind, err)
	}
	if string(rest) != "after" || string(got[:8]) != "12345678" {
		t.Fatalf("%+v, %v: %q follows", c, kind, rest)
	}
	return numbersOf(kind, got[8:]), size
}

// literal is QSGD as printed: ||v|| sgn(v_i) xi_i, with xi_i = l/s, or (l+1)/s
// with a probability of |v_i|/||v|| s - l; in float32 arithmetic, with places
// between levels rounded to 2^-23. A random number u says l+1 where it is less
// than the probability, or where 1 - u is not more; for one bit, as where levels
// are counted from the lowest.
func literal(v []float64, norm float32, bits int, random vector.Random, first int) []float64 {
	s := float32(max(1, (1<<bits-2)/2))
	out := make([]float64, len(v))
	for i := range v {
		u := float64(random.At(uint32(first+i))) * 0x1p-23
		if bits == 1 {
			up := 0.5 + math.RoundToEven(float64(float32(v[i])*(0x1p22/norm)))*0x1p-23
			out[i] = -float64(norm)
			if up >= 1-u {
				out[i] = float64(norm)
			}
			continue
		}
		r := min(math.RoundToEven(float64(float32(math.Abs(v[i]))*(s*0x1p23/norm)))*0x1p-23, float64(s))
		l := math.Floor(r)
		if v[i] < 0 && u < r-l || v[i] > 0 && 1-u <= r-l {
			l++
		}
		xi := float32(l) * (norm / s)
		out[i] = math.Copysign(float64(xi), v[i])
		if l == 0 {
			out[i] = 0
		}
	}
	return out
}

// ordinary is the setting of Alistarh et al. and of Sun et al.
var ordinary = Config{Bits: 8, Bucket: 512}

func TestEqualsThePaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{
			Bits:   rapid.IntRange(1, 8).Draw(t, "bits"),
			Bucket: rapid.SampledFrom([]int{8, 64, 100, 512, 1000}).Draw(t, "bucket"),
		}
		seed := rapid.Uint64().Draw(t, "seed")
		rng := rand.New(rand.NewPCG(seed, 1))
		v := normal(rng, rapid.IntRange(1, 1500).Draw(t, "n"), math.Ldexp(1, rapid.IntRange(-30, 30).Draw(t, "scale")))
		values := bytesOf(element.Float32, v)
		got, _ := passes(t, c, element.Float32, values, seed)
		for first := 0; first < len(v); first += c.Bucket {
			bucket := v[first:min(first+c.Bucket, len(v))]
			norm, ok := normOf(element.Float32, bytesOf(element.Float32, bucket))
			want := 0.0
			for _, x := range bucket {
				want = max(want, math.Abs(x))
			}
			if !ok || math.Abs(norm/want-1) > 1e-6 {
				t.Fatalf("norm %g, want %g", norm, want)
			}
			for i, x := range literal(bucket, float32(norm), c.Bits, vector.NewRandom(seed), first) {
				if got[first+i] != x {
					t.Fatalf("%+v: number %d, %g, is %g, want %g", c, first+i, bucket[i], got[first+i], x)
				}
			}
		}
	})
}

// On average over seeds what is received is what was sent.
func TestUnbiasedOverSeeds(t *testing.T) {
	const rounds = 4000
	for _, kind := range allKinds {
		for _, c := range []Config{{Bits: 1, Bucket: 16}, {Bits: 2, Bucket: 16}, {Bits: 4, Bucket: 8}, {Bits: 8, Bucket: 512}} {
			v := normal(rand.New(rand.NewPCG(1, 1)), 40, 1)
			values := bytesOf(kind, v)
			sums := make([]float64, len(v))
			for seed := range rounds {
				got, _ := passes(t, c, kind, values, uint64(seed))
				for i, x := range got {
					sums[i] += x
				}
			}
			for i, sum := range sums {
				const norm = 3.5 // no smaller than any bucket's
				deviation := norm / float64(vector.Levels(c.Bits)) / math.Sqrt(rounds)
				if kind == element.BFloat16 || kind == element.Float16 {
					deviation += norm * 0x1p-9 / 5 // what comes out is rounded to the kind once more
				}
				if gap := sum/rounds - v[i]; math.Abs(gap) > 5*deviation {
					t.Errorf("%v, %+v: number %d is %g on average, sent %g", kind, c, i, sum/rounds, v[i])
				}
			}
		}
	}
}

func TestSizes(t *testing.T) {
	v := normal(rand.New(rand.NewPCG(2, 2)), 1<<16, 1)
	for bits := 1; bits <= 8; bits++ {
		_, size := passes(t, Config{Bits: bits, Bucket: 512}, element.Float32, bytesOf(element.Float32, v), 1)
		if want := 1 + 2 + len(v)*bits/8 + len(v)/512*4; size != want {
			t.Errorf("%d bits: %d bytes, want %d", bits, size, want)
		}
	}
}

func TestSpecialBuckets(t *testing.T) {
	for _, kind := range allKinds {
		v := make([]float64, 40)
		for i := range v {
			v[i] = float64(i%5) - 2
		}
		v[3] = math.NaN()
		v[12] = math.Inf(-1)
		for i := 16; i < 24; i++ {
			v[i] = 0
		}
		values := bytesOf(kind, v)
		c := Config{Bits: 4, Bucket: 8}
		got, _ := passes(t, c, kind, values, 5)
		for i := range 24 { // two buckets as they are, one of zeros
			if got[i] != v[i] && (got[i] == got[i] || v[i] == v[i]) {
				t.Errorf("%v: number %d is %g, want %g", kind, i, got[i], v[i])
			}
		}
		if _, asIs := c.Append(nil, kind, values, 5); asIs != 16 {
			t.Errorf("%v: %d numbers went as they are", kind, asIs)
		}
		for i, x := range got[24:] {
			if math.Abs(x-v[24+i]) > 2.0/7+0.01 {
				t.Errorf("%v: number %d is %g, sent %g", kind, 24+i, x, v[24+i])
			}
		}
	}
	// Norms that float32 cannot divide well.
	for _, v := range []float64{1e-44, math.MaxFloat32, 1e-38} {
		got, _ := passes(t, ordinary, element.Float32, bytesOf(element.Float32, []float64{v, -v}), 1)
		if got[0] != float64(float32(v)) || got[1] != -got[0] {
			t.Errorf("%g became %g", v, got)
		}
	}
}

func TestCorrupt(t *testing.T) {
	wire, _ := Config{Bits: 3, Bucket: 100}.Append(nil, element.Float32, bytesOf(element.Float32, normal(rand.New(rand.NewPCG(3, 3)), 250, 1)), 1)
	for end := range wire {
		if _, _, err := Decode(nil, element.Float32, 250, wire[:end]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("the first %d of %d bytes: %v", end, len(wire), err)
		}
	}
	infinite := binary.LittleEndian.AppendUint32([]byte{8, 8}, math.Float32bits(float32(math.Inf(1))))
	if _, _, err := Decode(nil, element.Float32, 1, append(infinite, 1)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an infinite norm: %v", err)
	}
	if _, _, err := Decode(nil, element.Float32, 1<<40, wire); !errors.Is(err, ErrCorrupt) {
		t.Errorf("2^40 numbers in %d bytes: %v", len(wire), err)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	values := bytesOf(element.Float32, normal(rand.New(rand.NewPCG(4, 4)), 5000, 1))
	wire, _ := ordinary.Append(nil, element.Float32, values, 1)
	got, _, _ := Decode(nil, element.Float32, 5000, wire)
	if allocs := testing.AllocsPerRun(10, func() {
		wire, _ = ordinary.Append(wire[:0], element.Float32, values, 1)
		var err error
		if got, _, err = Decode(got[:0], element.Float32, 5000, wire); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%g allocations", allocs)
	}
}

func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, kind := range allKinds {
		for bits := 1; bits <= 8; bits++ {
			wire, _ := Config{Bits: bits, Bucket: 10}.Append(nil, kind, bytesOf(kind, normal(rng, 33, 1)), 1)
			f.Add(uint8(kind), uint16(33), wire)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, count uint16, wire []byte) {
		k := allKinds[int(kind)%len(allKinds)]
		values, rest, err := Decode(nil, k, int(count), wire)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if len(values) != int(count)*k.Size() || !bytes.HasSuffix(wire, rest) {
			t.Fatalf("%d bytes for %d numbers of %v", len(values), count, k)
		}
	})
}

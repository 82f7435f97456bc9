package sparse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

var allKinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

// random is a vector of n numbers with the given share of values, from a normal
// distribution; in runs of the given mean length.
func random(rng *rand.Rand, kind element.Kind, n int, share, run float64) *Vector {
	v := &Vector{}
	v.Reset(kind, n)
	in := rng.Float64() < share
	for i := range n {
		if in {
			v.Mask.Set(i)
			v.Values = append(v.Values, make([]byte, kind.Size())...)
			kind.Put(v.Values, v.Count()-1, rng.NormFloat64())
		}
		if in && rng.Float64() < (1-share)/run || !in && rng.Float64() < share/run {
			in = !in
		}
	}
	return v
}

// passes encodes and decodes v, and returns the wire form.
func passes(t interface {
	Helper()
	Fatalf(string, ...any)
}, v *Vector) []byte {
	t.Helper()
	mask := slices.Clone(v.Mask)
	wire := v.Append([]byte("before"))[6:]
	if !slices.Equal(mask, v.Mask) {
		t.Fatalf("encoding changed the mask")
	}
	var got Vector
	rest, err := got.Decode(append(wire, "after"...), v.N)
	if err != nil {
		t.Fatalf("decoding %d of %d: %v", v.Count(), v.N, err)
	}
	if string(rest) != "after" {
		t.Fatalf("%d of %d: %q follows, want \"after\"", v.Count(), v.N, rest)
	}
	if got.Kind != v.Kind || got.N != v.N || !slices.Equal(got.Mask, v.Mask) || !bytes.Equal(got.Values, v.Values) {
		t.Fatalf("%v, %d of %d values: decoded differently", v.Kind, v.Count(), v.N)
	}
	return wire
}

func TestEveryLengthAndDensity(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, kind := range allKinds {
		for _, n := range []int{0, 1, 2, 63, 64, 65, 127, 128, 129, 1000, 5000} {
			for _, share := range []float64{0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1} {
				for _, run := range []float64{1, 20} {
					passes(t, random(rng, kind, n, share, run))
				}
			}
		}
	}
}

func TestAnyBitsSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := &Vector{}
		v.Reset(rapid.SampledFrom(allKinds).Draw(t, "kind"), rapid.IntRange(0, 300).Draw(t, "n"))
		positions := rapid.SliceOfDistinct(rapid.IntRange(0, max(v.N-1, 0)), func(i int) int { return i }).Draw(t, "positions")
		for _, p := range positions {
			if p < v.N {
				v.Mask.Set(p)
			}
		}
		exponents := rapid.SliceOfN(rapid.Uint64Range(0, 2047), 1, 4).Draw(t, "exponents")
		for i := range v.Mask.Count() {
			number := rapid.Uint64().Draw(t, "number")
			number = number&^(2047<<52) | exponents[i%len(exponents)]<<52
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], number)
			v.Values = append(v.Values, b[8-v.Kind.Size():]...)
		}
		passes(t, v)
		packed := AppendValues(nil, v.Kind, v.Values, true)
		values, rest, err := DecodeValues(nil, v.Kind, v.Count(), packed)
		if err != nil || len(rest) != 0 || !bytes.Equal(values, v.Values) {
			t.Fatalf("values packed: %v, %d bytes left, equal %v", err, len(rest), bytes.Equal(values, v.Values))
		}
	})
}

// A position costs at most 3% more than its entropy, or the bitmap's bit.
func TestPositionsCostLittle(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const n = 1 << 20
	for _, share := range []float64{0.0001, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.95, 0.99} {
		v := random(rng, element.Float32, n, share, 1)
		size := len(AppendPositions(nil, v.Mask, n))
		p := float64(v.Count()) / n
		entropy := -n * (p*math.Log2(p) + (1-p)*math.Log2(1-p)) / 8
		if limit := 1.03*entropy + 20; float64(size) > limit && size > n/8+1 {
			t.Errorf("share %g: %d bytes, entropy %.0f", share, size, entropy)
		}
		t.Logf("share %g: %d bytes, %.2f bits a position, entropy %.2f", share, size,
			8*float64(size)/float64(v.Count()), 8*entropy/float64(v.Count()))
	}
}

func TestRunsCostLittle(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 1 << 18
	together := random(rng, element.Float32, n, 0.1, 32)
	apart := random(rng, element.Float32, n, 0.1, 1)
	if a, b := len(AppendPositions(nil, together.Mask, n)), len(AppendPositions(nil, apart.Mask, n)); a*5 > b {
		t.Errorf("runs of 32 take %d bytes, single positions %d", a, b)
	}
}

// The largest of many numbers take at most 27 of 32 bits: they have few
// different exponents.
func TestLargestNumbersPackWell(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for name, draw := range map[string]func() float64{
		"normal":  rng.NormFloat64,
		"laplace": func() float64 { return rng.ExpFloat64() * math.Copysign(1, rng.Float64()-0.5) },
		"cauchy":  func() float64 { return math.Tan(math.Pi * (rng.Float64() - 0.5)) },
	} {
		all := make([]float64, 200_000)
		for i := range all {
			all[i] = draw() * 1e-4
		}
		slices.SortFunc(all, func(a, b float64) int {
			if math.Abs(a) > math.Abs(b) {
				return -1
			}
			return 1
		})
		top := all[:len(all)/100]
		values := make([]byte, 4*len(top))
		for i, at := range rng.Perm(len(top)) {
			element.Float32.Put(values, i, top[at])
		}
		each := 8 * float64(len(AppendValues(nil, element.Float32, values, true))) / float64(len(top))
		if each > 27 {
			t.Errorf("%s: %.2f bits a value", name, each)
		}
		t.Logf("%s: %.2f bits a value", name, each)
	}
}

func TestExpandMergeGather(t *testing.T) {
	for _, kind := range allKinds {
		v := random(rand.New(rand.NewPCG(9, 10)), kind, 777, 0.2, 3)
		whole := bytes.Repeat([]byte{7}, v.N*kind.Size())
		before := slices.Clone(whole)
		v.Merge(whole)
		expanded := make([]byte, len(whole))
		v.Expand(expanded)
		taken := 0
		for i := range v.N {
			part := func(b []byte) []byte { return b[i*kind.Size() : (i+1)*kind.Size()] }
			want, wantExpanded := part(before), make([]byte, kind.Size())
			if v.Mask.Has(i) {
				want = v.Values[taken*kind.Size() : (taken+1)*kind.Size()]
				wantExpanded = want
				taken++
			}
			if !bytes.Equal(part(whole), want) || !bytes.Equal(part(expanded), wantExpanded) {
				t.Fatalf("%v: number %d is % x merged, % x expanded", kind, i, part(whole), part(expanded))
			}
		}
		values := slices.Clone(v.Values)
		v.Gather(whole)
		if !bytes.Equal(v.Values, values) {
			t.Errorf("%v: gathered values differ", kind)
		}
	}
}

// What Gather notes of positions is what the mask says: the wire form is the same
// without it. The last word is whole, or has few positions, or no numbers of its own.
func TestGatherNotesPositions(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{1, 63, 64, 65, 300, 5000, 5056} {
		for _, share := range []float64{0.001, 0.01, 0.1, 0.2, 0.3, 0.9} {
			v := random(rng, element.Float32, n, share, 1)
			src := make([]byte, 4*n)
			for i := range src {
				src[i] = byte(rng.Uint32())
			}
			v.Gather(src)
			var want []byte
			var at []uint32
			for i := range n {
				if v.Mask.Has(i) {
					at, want = append(at, uint32(i)), append(want, src[4*i:4*i+4]...)
				}
			}
			if !bytes.Equal(v.Values, want) || len(v.At) > 0 && !slices.Equal(v.At, at) || len(v.At) == 0 && len(at) > 0 && len(at) < n/packedShare {
				t.Fatalf("%d numbers, %v: %d values at %v, want %d at %v", n, share, v.Count(), v.At, len(at), at)
			}
			noted := v.Append(nil)
			v.At = v.At[:0]
			if !bytes.Equal(noted, v.Append(nil)) {
				t.Errorf("%d numbers, %v: other bytes with the positions than without", n, share)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	v := random(rand.New(rand.NewPCG(11, 12)), element.Float32, 1000, 0.1, 1)
	wire := v.Append(nil)
	var got Vector
	if _, err := got.Decode(wire, 999); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a vector longer than expected: %v", err)
	}
	for end := range wire {
		if _, err := got.Decode(wire[:end], 1000); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("the first %d of %d bytes: %v", end, len(wire), err)
		}
	}
	for name, wire := range map[string][]byte{
		"unknown kind":               {9, 1, byte(formAll), byte(valuesRaw), 0, 0, 0, 0},
		"unknown form":               {0, 1, 77},
		"bitmap beyond its end":      {0, 3, byte(formBitmap), 0x0f},
		"more positions than fit":    {0, 3, byte(formGaps), 4, 0, 0x0f},
		"position beyond the end":    {0, 3, byte(formGaps), 1, 0, 0x08},
		"run beyond the end":         {0, 3, byte(formRuns), 1, 0, 0x01, 0, 0x08},
		"2^63 numbers":               {0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, byte(formAll)},
		"exponents of unknown form":  {0, 1, byte(formAll), byte(valuesPacked), 0x30, 1, 0, 0, 0, 0},
		"exponent beyond the kind's": {0, 1, byte(formAll), byte(valuesPacked), byte(riceDown) << 4, 0, 2, 0, 0, 0},
		"values of unknown form":     {0, 1, byte(formAll), 9},
	} {
		if _, err := got.Decode(wire, 1000); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	v := random(rand.New(rand.NewPCG(13, 14)), element.Float32, 100_000, 0.01, 1)
	var got Vector
	wire := v.Append(nil)
	whole := make([]byte, 4*v.N)
	if allocs := testing.AllocsPerRun(10, func() {
		wire = v.Append(wire[:0])
		if _, err := got.Decode(wire, v.N); err != nil {
			t.Fatal(err)
		}
		got.Expand(whole)
		got.Gather(whole)
	}); allocs != 0 {
		t.Errorf("%g allocations", allocs)
	}
}

func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(15, 16))
	for _, kind := range allKinds {
		for _, share := range []float64{0, 0.02, 0.3, 0.9, 1} {
			f.Add(random(rng, kind, 200, share, 1).Append(nil))
			f.Add(random(rng, kind, 200, share, 20).Append(nil))
		}
	}
	const most = 4096
	f.Fuzz(func(t *testing.T, wire []byte) {
		var v, again Vector
		rest, err := v.Decode(wire, most)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if v.N > most || v.Mask.Count() != v.Count() || len(v.Mask) != Words(v.N) {
			t.Fatalf("%d numbers, %d positions, %d values", v.N, v.Mask.Count(), v.Count())
		}
		v.Expand(make([]byte, v.N*v.Kind.Size()))
		if _, err := again.Decode(v.Append(nil), most); err != nil || !bytes.Equal(again.Values, v.Values) ||
			!slices.Equal(again.Mask, v.Mask) {
			t.Fatalf("encoded again it reads differently: %v (%d bytes followed)", err, len(rest))
		}
	})
}

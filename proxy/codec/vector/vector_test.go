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

// numbers are n numbers of a kind with all sorts of bits, at an odd address.
func numbers(rng *rand.Rand, kind element.Kind, n int) []byte {
	b := make([]byte, 1+n*kind.Size())[1:]
	for i := range n {
		switch rng.IntN(12) {
		case 0: // any bits
			for j := range kind.Size() {
				b[i*kind.Size()+j] = byte(rng.Uint32())
			}
		case 1:
			special := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1, -1}
			kind.Put(b, i, special[rng.IntN(len(special))])
		default:
			kind.Put(b, i, rng.NormFloat64())
		}
	}
	return b
}

func residual[R Float](rng *rand.Rand, n int) []R {
	e := make([]R, n)
	for i := range e {
		e[i] = R(rng.NormFloat64())
	}
	return e
}

// equalBits compares numbers bit for bit.
func equalBits[R Float](a, b []R) bool {
	return slices.EqualFunc(a, b, func(x, y R) bool {
		return math.Float64bits(float64(x)) == math.Float64bits(float64(y)) || x != x && y != y
	})
}

func TestAddEqualsPortable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		n := rapid.IntRange(0, 400).Draw(t, "n")
		tau := rapid.SampledFrom([]float64{0, 0.5, 1, 2, math.SmallestNonzeroFloat32, math.Inf(1), math.NaN()}).Draw(t, "tau")
		testAdd(t, seed, n, float32(tau), element.Float32, AddFloat32)
		testAdd(t, seed, n, float32(tau), element.Float16, AddFloat16)
		testAdd(t, seed, n, float32(tau), element.BFloat16, AddBFloat16)
		testAdd(t, seed, n, tau, element.Float64, AddFloat64)
	})
}

func testAdd[R Float](t *rapid.T, seed uint64, n int, tau R, kind element.Kind,
	adder func([]R, []byte, R, []uint64, []uint32, int) []uint32,
) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, uint64(kind)))
	g, e := numbers(rng, kind, n), residual[R](rng, n)
	want, wantMask := slices.Clone(e), make([]uint64, (n+63)/64)
	wantAt := add(want, func(i int) R { return R(kind.At(g, i)) }, tau, wantMask, []uint32{5}, 1000)
	mask := slices.Repeat([]uint64{77}, len(wantMask))
	at := adder(e, g, tau, mask, []uint32{5}, 1000)
	if !equalBits(e, want) {
		t.Fatalf("%v, n %d: sums differ", kind, n)
	}
	if !slices.Equal(mask, wantMask) {
		t.Fatalf("%v, n %d, tau %g: mask %x, want %x", kind, n, tau, mask, wantMask)
	}
	if !slices.Equal(at, wantAt) {
		t.Fatalf("%v, n %d, tau %g: positions %d, want %d", kind, n, tau, at, wantAt)
	}
	for i, v := range e {
		if got := mask[i/64]>>(i%64)&1 != 0; got == (math.Abs(float64(v)) < float64(tau)) {
			t.Fatalf("%v: %g at threshold %g: %v", kind, v, tau, got)
		}
	}
	clear(mask)
	at = Compare(e, tau, mask, []uint32{5}, 1000)
	if !slices.Equal(mask, wantMask) || !slices.Equal(at, wantAt) {
		t.Fatalf("%v, n %d, tau %g: compared alone %x, %d, want %x, %d", kind, n, tau, mask, at, wantMask, wantAt)
	}
}

func TestDiffer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, kind := range []element.Kind{element.Float16, element.Float32, element.Float64} {
		for n := range 300 {
			a := numbers(rng, kind, n)
			b := slices.Clone(a)
			want := make([]uint64, (n+63)/64)
			for i := range n {
				if rng.IntN(4) == 0 {
					b[i*kind.Size()+rng.IntN(kind.Size())] ^= 1 << rng.IntN(8)
					want[i/64] |= 1 << (i % 64)
				}
			}
			mask := slices.Repeat([]uint64{77}, len(want))
			Differ(kind, a, b, mask)
			if !slices.Equal(mask, want) {
				t.Fatalf("%v, n %d: %x, want %x", kind, n, mask, want)
			}
		}
	}
}

// Selecting equals sorting.
func TestSelectEqualsSorting(t *testing.T) {
	var s Selector
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.SampledFrom([]int{1, 10, 500, 4095, 4096, 5000, 40_000}).Draw(t, "n")
		share := rapid.OneOf(rapid.Float64Range(0, 0.9999), rapid.SampledFrom([]float64{0, 0.5, 0.9, 0.99, 0.999})).Draw(t, "share")
		coarse := rapid.Bool().Draw(t, "coarse")
		zeros := rapid.SampledFrom([]float64{0, 0, 0.9, 0.98, 1}).Draw(t, "zeros")
		narrow, wide := make([]float32, n), make([]float64, n)
		raw := numbers(rng, element.Float32, n)
		var finite []float64
		for i := range n {
			v := element.Float32.At(raw, i)
			if coarse && math.Abs(v) < 1e30 {
				v = math.Round(v * 2)
			}
			if rng.Float64() < zeros {
				v = 0
			}
			narrow[i], wide[i] = float32(v), v
			if v-v == 0 {
				finite = append(finite, math.Abs(v))
			}
		}
		slices.Sort(finite)
		want := 0.0
		if j := int(math.Floor(float64(len(finite)) * share)); j > 0 {
			want = finite[j-1]
		}
		if got := s.SelectFloat32(narrow, share); float64(got) != want {
			t.Fatalf("float32: %g, want %g", got, want)
		}
		if got := s.SelectFloat64(wide, share); got != want {
			t.Fatalf("float64: %g, want %g", got, want)
		}
		bound, ok := s.Bound(n, share, func(i int) float64 { return wide[i] })
		if !ok {
			return
		}
		mask, least := make([]uint64, (n+63)/64), max(bound, math.SmallestNonzeroFloat32)
		at := Compare(narrow, float32(least), mask, nil, 0)
		if got, ok := s.AmongFloat32(narrow, at, share); ok && float64(got) != want || !ok && want >= least {
			t.Fatalf("float32: %g (%v) among those above %g, want %g", got, ok, bound, want)
		}
		at = Compare(wide, least, mask, nil, 0)
		if got, ok := s.AmongFloat64(wide, at, share); ok && got != want || !ok && want >= least {
			t.Fatalf("float64: %g (%v) among those above %g, want %g", got, ok, bound, want)
		}
	})
}

// Rounding equals that of package element, and leaves the rest.
func TestRoundTo16(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, c := range []struct {
		kind  element.Kind
		round func([]byte, []float32) int
		from  func(dst, src []byte)
	}{{element.Float16, RoundToFloat16, FromFloat16}, {element.BFloat16, RoundToBFloat16, FromBFloat16}} {
		for n := range 200 {
			raw := numbers(rng, element.Float32, n)
			v, finite := make([]float32, n), 0
			for i := range v {
				v[i] = float32(element.Float32.At(raw, i))
				if rng.IntN(4) == 0 {
					v[i] *= float32(math.Ldexp(1, rng.IntN(60)-30)) // subnormal, or too large
				}
				if v[i]-v[i] == 0 {
					finite++
				}
			}
			rest, got, want := slices.Clone(v), make([]byte, 2*n), make([]byte, 2*n)
			if nonFinite := c.round(got, rest); nonFinite != n-finite {
				t.Fatalf("%v: %d numbers not finite, want %d", c.kind, nonFinite, n-finite)
			}
			for i, x := range v {
				c.kind.Put(want, i, float64(x))
				left := x - float32(c.kind.At(got, i))
				if x-x == 0 && (rest[i] != left || left-left != 0) || x-x != 0 && rest[i] != 0 {
					t.Fatalf("%v: %g became %g and %g", c.kind, x, c.kind.At(got, i), rest[i])
				}
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("%v: % x, want % x", c.kind, got, want)
			}
			halves, wide := numbers(rng, c.kind, n), make([]byte, 4*n)
			c.from(wide, halves)
			for i := range n {
				if x, y := element.Float32.At(wide, i), c.kind.At(halves, i); x != y && (x == x || y == y) {
					t.Fatalf("%v: %g became %g", c.kind, y, x)
				}
			}
		}
	}
}

func TestLargestEqualsSorting(t *testing.T) {
	var s Selector
	rng := rand.New(rand.NewPCG(2, 2))
	for _, kind := range kinds {
		for _, n := range []int{1, 2, 100, 5000} {
			values := numbers(rng, kind, n)
			all := make([]uint64, n)
			for i := range all {
				all[i] = Magnitude(kind, values, i)
			}
			slices.Sort(all)
			for _, k := range []int{1, n/100 + 1, n/2 + 1, n} {
				if got := s.Largest(kind, values, k); got != all[n-k] {
					t.Errorf("%v: number %d of %d is %x, want %x", kind, k, n, got, all[n-k])
				}
			}
		}
	}
}

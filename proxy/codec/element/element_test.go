package element

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	for k := range kinds {
		if got, err := Parse(k.String()); err != nil || got != k {
			t.Errorf("Parse(%q) = %v, %v", k, got, err)
		}
		if !k.Valid() || k.Size() != map[Kind]int{Float32: 4, Float64: 8, Float16: 2, BFloat16: 2}[k] {
			t.Errorf("%v: valid %v, size %d", k, k.Valid(), k.Size())
		}
	}
	if _, err := Parse("float8"); err == nil {
		t.Error("float8 is no kind")
	}
}

func TestFloat16OfKnownNumbers(t *testing.T) {
	inf := float32(math.Inf(1))
	for h, f := range map[uint16]float32{
		0x0000: 0, 0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0400: 0x1p-14, 0x03ff: 1023 * 0x1p-24,
		0x0001: 0x1p-24, 0x3555: 0.333251953125, 0x7c00: inf, 0xfc00: -inf,
	} {
		if got := FromFloat16(h); got != f {
			t.Errorf("FromFloat16(%#04x) = %g, want %g", h, got, f)
		}
		if got := ToFloat16(f); got != h {
			t.Errorf("ToFloat16(%g) = %#04x, want %#04x", f, got, h)
		}
	}
}

// Every 16-bit number survives the way through a larger kind.
func TestSixteenBitsThereAndBack(t *testing.T) {
	for _, k := range []Kind{Float16, BFloat16} {
		var b [2]byte
		for i := range 1 << 16 {
			b[0], b[1] = byte(i), byte(i>>8)
			before := k.At(b[:], 0)
			k.Put(b[:], 0, before)
			after := k.At(b[:], 0)
			if same := before == after || before != before && after != after; !same {
				t.Fatalf("%v %#04x: %g became %g", k, i, before, after)
			}
			if before == before && b != [2]byte{byte(i), byte(i >> 8)} {
				t.Fatalf("%v %#04x became % x", k, i, b)
			}
		}
	}
}

// nearest finds the number of a 16-bit kind closest to v by trying all, in
// arithmetic without rounding.
func nearest(k Kind, v float64) uint16 {
	exact := new(big.Float).SetPrec(2000).SetFloat64(v)
	var best uint16
	var bestGap *big.Float
	for i := range 1 << 16 {
		b := []byte{byte(i), byte(i >> 8)}
		n := k.At(b, 0)
		if n-n != 0 || math.Signbit(n) != math.Signbit(v) {
			continue
		}
		gap := new(big.Float).SetPrec(2000).SetFloat64(n)
		gap.Abs(gap.Sub(gap, exact))
		if c := -1; bestGap != nil {
			if c = gap.Cmp(bestGap); c > 0 || c == 0 && i&1 == 1 {
				continue
			}
		}
		best, bestGap = uint16(i), gap
	}
	return best
}

func TestPutRoundsToNearest(t *testing.T) {
	values := []float64{0, 1, 1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-50, 1 + 3*0x1p-11, 65519, 65520, 1e30, -1e300,
		0x1p-25, 0x1.8p-25, 0x1p-26, 3 * 0x1p-25, 1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-45, math.MaxFloat32, 0x1p-140, 0.1}
	for _, k := range []Kind{Float16, BFloat16} {
		for _, v := range values {
			var b [2]byte
			k.Put(b[:], 0, v)
			got := uint16(b[0]) | uint16(b[1])<<8
			if want := nearest(k, v); got != want {
				t.Errorf("%v of %g is %#04x, want %#04x", k, v, got, want)
			}
		}
	}
}

func TestPutKeepsFiniteFinite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64().Draw(t, "v")
		var b [8]byte
		for k := range kinds {
			k.Put(b[:], 0, v)
			got := k.At(b[:], 0)
			if (v-v == 0) != (got-got == 0) || (v != v) != (got != got) {
				t.Fatalf("%v: %g became %g", k, v, got)
			}
			if v == v && got != 0 && math.Signbit(v) != math.Signbit(got) {
				t.Fatalf("%v: %g became %g", k, v, got)
			}
		}
	})
}

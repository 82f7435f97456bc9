package rows

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// slow is Algorithm 2 by sorting: which values of a row go, and whether the row is
// open.
func slow(kind element.Kind, row []byte, sparsity float64) (goes []bool, open bool) {
	d := len(row) / kind.Size()
	goes = make([]bool, d)
	finite, zeros := true, true
	for i := range d {
		v := kind.At(row, i)
		finite = finite && !math.IsNaN(v) && !math.IsInf(v, 0)
		zeros = zeros && v == 0
	}
	if !finite || zeros {
		for i := range goes {
			goes[i] = !isZero(row[i*kind.Size():(i+1)*kind.Size()]) && !zeros
		}
		return goes, true
	}
	var sorted []float64
	for i := range d {
		sorted = append(sorted, math.Abs(kind.At(row, i)))
	}
	slices.Sort(sorted)
	tau := sorted[min(int(math.Ceil(float64(d)*sparsity)), d-1)]
	for i := range goes {
		m := math.Abs(kind.At(row, i))
		goes[i] = m >= tau && m > 0
	}
	return goes, false
}

var kinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

// rowsOf draws rows: of their own scales, some with zeros, equal numbers, NaNs.
func rowsOf(t *rapid.T, kind element.Kind) (all [][]byte) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	d := rapid.SampledFrom([]int{1, 2, 16, 31, 32, 33, 64, 100, 512, 1000}).Draw(t, "width")
	own := rapid.Bool().Draw(t, "own widths")
	for range rapid.IntRange(1, 12).Draw(t, "rows") {
		if own {
			d = 1 + rng.IntN(200)
		}
		row := make([]byte, d*kind.Size())
		scale, sort := math.Ldexp(1, rng.IntN(9)-4), rng.IntN(8)
		for i := range d {
			v := scale * rng.NormFloat64()
			switch {
			case sort == 0 || sort == 1 && rng.IntN(10) > 0:
				v = 0
			case sort == 2:
				v = float64(rng.IntN(3)) - 1
			case sort == 3 && rng.IntN(d) == 0:
				v = []float64{math.NaN(), math.Inf(-1)}[rng.IntN(2)]
			case sort == 4 && rng.IntN(4) == 0:
				v = math.Copysign(0, -1)
			}
			kind.Put(row, i, v)
		}
		all = append(all, row)
	}
	return all
}

// Whatever the rows, of each go the values that go by sorting, and those rows are
// open that say nothing of which values count.
func TestEqualsSorting(t *testing.T) {
	var c Chooser // of all: what it guesses must not matter
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		sparsity := rapid.SampledFrom([]float64{0, 0.3, 0.5, 0.75, 0.9, 0.95, 0.999}).Draw(t, "sparsity")
		all := rowsOf(t, kind)
		var v sparse.Vector
		c.Begin(&v, kind, len(bytes.Join(all, nil))/kind.Size(), sparsity)
		var goes, open []bool
		for _, row := range all {
			c.Add(row)
			g, o := slow(kind, row, sparsity)
			goes = append(goes, g...)
			open = append(open, slices.Repeat([]bool{o}, len(g))...)
		}
		values, at := []byte(nil), []uint32(nil)
		for i, b := range bytes.Join(all, nil) {
			if goes[i/kind.Size()] {
				values = append(values, b)
			}
		}
		for i, g := range goes {
			if v.Mask.Has(i) != g {
				t.Fatalf("value %d goes: %v, want %v", i, v.Mask.Has(i), g)
			}
			if g {
				at = append(at, uint32(i))
			}
		}
		if !bytes.Equal(v.Values, values) || !slices.Equal(v.At, at) {
			t.Fatalf("values % x at %v, want % x at %v", v.Values, v.At, values, at)
		}
		got := make([]bool, len(open))
		for _, s := range c.Open {
			for i := s.From; i < s.To; i++ {
				got[i] = true
			}
		}
		if !slices.Equal(got, open) {
			t.Fatalf("open are %v, want %v", got, open)
		}
	})
}

// So many go of rows of numbers of which no two are equal, and their share is what
// was asked for; the mean threshold is that of the rows.
func TestKept(t *testing.T) {
	for _, c := range []struct {
		d        int
		sparsity float64
		want     int
	}{{16, 0.95, 1}, {16, 0.9, 1}, {64, 0.9, 6}, {512, 0.95, 25}, {1000, 0.9, 100}, {1, 0.95, 1}, {10, 0, 10}, {7, math.Nextafter(1, 0), 1}} {
		row := make([]byte, 4*c.d)
		for i := range c.d {
			element.Float32.Put(row, i, float64(i+1)*math.Pow(-1, float64(i)))
		}
		var v sparse.Vector
		var chooser Chooser
		chooser.Begin(&v, element.Float32, 2*c.d, c.sparsity)
		chooser.Add(row)
		chooser.Add(row)
		if n := v.Count(); n != 2*c.want || Kept(c.d, c.sparsity) != c.want {
			t.Errorf("of twice %d at %v go %d, want twice %d", c.d, c.sparsity, n, c.want)
		}
		if tau := chooser.Tau / float64(chooser.Rows); chooser.Rows != 2 || tau != float64(c.d-c.want+1) {
			t.Errorf("of %d at %v the mean threshold is %v of %d rows", c.d, c.sparsity, tau, chooser.Rows)
		}
	}
}

// The k-th largest is that of sorting, also of keys that are chosen to be hard.
func TestLargest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.Uint64Max(rapid.SampledFrom([]uint64{0, 3, 100, math.MaxUint64}).Draw(t, "most")), 1, 300).Draw(t, "keys")
		k := rapid.IntRange(1, len(keys)).Draw(t, "k")
		want := slices.Sorted(slices.Values(keys))[len(keys)-k]
		if got := largest(slices.Clone(keys), make([]uint64, len(keys)), k); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	})
	organ := make([]uint64, 1<<16) // the median of three is small each time
	for i := range organ {
		organ[i] = uint64(min(i, len(organ)-i))
	}
	for _, k := range []int{1, 100, 1 << 15, 1 << 16} {
		want := slices.Sorted(slices.Values(organ))[len(organ)-k]
		if got := largest(slices.Clone(organ), make([]uint64, len(organ)), k); got != want {
			t.Errorf("organ pipes, %d: %d, want %d", k, got, want)
		}
	}
}

// The magnitude of a number is the bits that order it.
func TestFromMagnitude(t *testing.T) {
	for _, kind := range kinds {
		b := make([]byte, kind.Size())
		kind.Put(b, 0, -1.5)
		if got := fromMagnitude(kind, vector.Magnitude(kind, b, 0)); got != 1.5 {
			t.Errorf("%v: %v", kind, got)
		}
	}
}

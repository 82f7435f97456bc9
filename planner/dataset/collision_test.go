package dataset

import (
	"fmt"
	"math"
	"testing"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/test/require"
)

// row is a row of a test: ids and values.
type row struct {
	ids    []uint64
	values []float32
}

// readSpan returns ids from..to-1, spread over the id space, with the value 1.
func readSpan(from, to int) (r row) {
	for i := from; i < to; i++ {
		r.ids = append(r.ids, uint64(i)*2654435761)
		r.values = append(r.values, 1)
	}
	return r
}

// draws returns the samples of a row, copied.
func draws(t testing.TB, h *Hasher, r row) []sample {
	t.Helper()
	ok, err := h.draw(r.ids, r.values)
	if err != nil || !ok {
		t.Fatalf("draw: %v, %v", ok, err)
	}
	return append([]sample(nil), h.sample...)
}

// collisions returns the share of bins in which a and b have one sample.
func collisions(t testing.TB, h *Hasher, a, b row) float64 {
	first, same := draws(t, h, a), 0
	for i, s := range draws(t, h, b) {
		if s == first[i] {
			same++
		}
	}
	return float64(same) / float64(len(first))
}

// minMax is the min-max similarity of two rows, the Jaccard similarity where
// the values are 0 and 1.
func minMax(a, b row) float64 {
	weight := map[uint64]float64{}
	for i, id := range a.ids {
		weight[id] = float64(a.values[i])
	}
	var least, most float64
	for i, id := range b.ids {
		v := float64(b.values[i])
		least += min(v, weight[id])
		most += max(v, weight[id])
		delete(weight, id)
	}
	for _, v := range weight {
		most += v
	}
	return least / most
}

// moments collects independent observations in [-1, 1].
type moments struct{ n, sum, squares float64 }

func (m *moments) add(x float64) { m.n, m.sum, m.squares = m.n+1, m.sum+x, m.squares+x*x }
func (m *moments) mean() float64 { return m.sum / m.n }
func (m *moments) variance() float64 {
	return (m.squares - m.sum*m.sum/m.n) / (m.n - 1)
}

// radius is the empirical Bernstein bound (Maurer and Pontil 2009, theorem 4)
// for observations in a range of width w: the mean is off its expectation by
// more with a probability below 1e-9.
func (m *moments) radius(w float64) float64 {
	l := math.Log(4 / 1e-9)
	return math.Sqrt(2*m.variance()*l/m.n) + 7*w*l/(3*(m.n-1))
}

func TestCollisionIsSimilarity(t *testing.T) {
	weights := func(r row, f func(i int) float32) row {
		for i := range r.values {
			r.values[i] = f(i)
		}
		return r
	}
	for _, tc := range []struct {
		name   string
		scheme HashScheme
		bins   int
		a, b   row
		seeds  uint64
	}{
		{"few features in many bins", OPH, 64, readSpan(0, 6), readSpan(3, 10), 20000},
		{"one shared feature", OPH, 64, readSpan(0, 2), readSpan(1, 5), 20000},
		{"alike", OPH, 32, readSpan(0, 20), readSpan(0, 20), 1000},
		{"disjoint", OPH, 32, readSpan(0, 20), readSpan(20, 45), 1000},
		{"subset", OPH, 16, readSpan(0, 30), readSpan(5, 25), 20000},
		{"many features in few bins", OPH, 8, readSpan(0, 300), readSpan(100, 400), 20000},
		{"one bin", OPH, 1, readSpan(0, 30), readSpan(10, 40), 60000},
		{"bins no power of two", OPH, 37, readSpan(0, 12), readSpan(4, 16), 20000},
		{"zeros and ones", BCWS, 16, readSpan(0, 12), readSpan(4, 16), 20000},
		{"zeros and ones, mostly empty bins", BCWS, 64, readSpan(0, 6), readSpan(3, 10), 10000},
		{"weights in one bin", BCWS, 1,
			weights(readSpan(0, 10), func(i int) float32 { return float32(i + 1) }),
			weights(readSpan(2, 12), func(i int) float32 { return float32(10-i) / 2 }), 60000},
		{"one weight scaled", BCWS, 4, row{[]uint64{7}, []float32{1}}, row{[]uint64{7}, []float32{3}}, 60000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m moments
			for seed := range tc.seeds {
				h := require.Value(NewHasher(HashOptions{Scheme: tc.scheme, Bins: tc.bins, Seed: seed}))(t)
				m.add(collisions(t, h, tc.a, tc.b))
			}
			want := minMax(tc.a, tc.b)
			if d := math.Abs(m.mean() - want); d > m.radius(1) {
				t.Errorf("collision probability %.4f, similarity %.4f: %.4f apart, at most %.4f is chance", m.mean(), want, d, m.radius(1))
			}
		})
	}
}

// heavyTailed returns two rows with n features each, half of them shared, with
// log-normal values.
func heavyTailed(n int, sigma float64) (a, b row) {
	a, b = readSpan(0, n), readSpan(n/2, n+n/2)
	fill := func(r row, salt uint64) {
		for i, id := range r.ids {
			u, v := unit(splitmix.Next(id^salt)), unit(splitmix.Next(id^salt^1))
			r.values[i] = float32(math.Exp(sigma * math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)))
		}
	}
	fill(a, 11)
	fill(b, 12)
	return a, b
}

// TestBCWSPerBin checks bin-wise sampling where the similarity differs from
// bin to bin: in each bin, given what lies in it and in its donor, the
// collision probability is the min-max similarity of what lies there.
func TestBCWSPerBin(t *testing.T) {
	a, b := heavyTailed(12, 1.5)
	var m moments
	for seed := range uint64(8000) {
		h := require.Value(NewHasher(HashOptions{Scheme: BCWS, Bins: 16, Seed: seed}))(t)
		inA, inB := sources(t, h, a), sources(t, h, b)
		var want float64
		for bin := range h.sample {
			if inA[bin].from == inB[bin].from {
				want += minMax(inA[bin].row, inB[bin].row)
			}
		}
		m.add(collisions(t, h, a, b) - want/float64(len(h.sample)))
	}
	if d := math.Abs(m.mean()); d > m.radius(2) {
		t.Errorf("off by %.4f, at most %.4f is chance", d, m.radius(2))
	}
}

// source is what a bin's sample is drawn from: the features of one bin.
type source struct {
	from int
	row  row
}

func sources(t *testing.T, h *Hasher, r row) []source {
	t.Helper()
	require.NoError(t, h.distribute(r.ids, r.values))
	out := make([]source, len(h.first))
	for bin := range out {
		from := bin
		if h.first[bin] < 0 {
			from = h.donor(bin)
		}
		out[bin].from = from
		for i := h.first[from]; i >= 0; i = h.next[i] {
			out[bin].row.ids = append(out[bin].row.ids, r.ids[i])
			out[bin].row.values = append(out[bin].row.values, r.values[i])
		}
	}
	for _, u := range h.used {
		h.first[u] = -1
	}
	return out
}

// TestBCWSOverall states how close the collision probability over all bins
// comes to the min-max similarity for rows like those of text.
func TestBCWSOverall(t *testing.T) {
	for _, tc := range []struct {
		features, bins int
		within         float64
	}{
		{200, 16, 0.02}, {400, 64, 0.04},
	} {
		t.Run(fmt.Sprintf("%d features in %d bins", tc.features, tc.bins), func(t *testing.T) {
			a, b := heavyTailed(tc.features, 0.5)
			var m moments
			for seed := range uint64(1500) {
				h := require.Value(NewHasher(HashOptions{Scheme: BCWS, Bins: tc.bins, Seed: seed}))(t)
				m.add(collisions(t, h, a, b))
			}
			if d := math.Abs(m.mean() - minMax(a, b)); d > tc.within+m.radius(1) {
				t.Errorf("collision probability %.4f, similarity %.4f", m.mean(), minMax(a, b))
			}
		})
	}
}

// TestRedrawingLowersVariance compares with densification that copies the
// donor's sample, over the same bins and donors (the paper's main claim).
func TestRedrawingLowersVariance(t *testing.T) {
	a, b := readSpan(0, 12), readSpan(4, 16)
	var redrawn, copied moments
	for seed := range uint64(6000) {
		h := require.Value(NewHasher(HashOptions{Bins: 64, Seed: seed}))(t)
		redrawn.add(collisions(t, h, a, b))
		inA, inB := sources(t, h, a), sources(t, h, b)
		drawA, drawB, same := draws(t, h, a), draws(t, h, b), 0
		for bin := range inA {
			if drawA[inA[bin].from] == drawB[inB[bin].from] {
				same++
			}
		}
		copied.add(float64(same) / float64(len(inA)))
	}
	if r := redrawn.variance() / copied.variance(); r > 0.9 {
		t.Errorf("variance %.5f redrawn, %.5f copied: ratio %.2f, want below 0.9", redrawn.variance(), copied.variance(), r)
	}
}

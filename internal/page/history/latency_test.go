package history

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// A distribution that is sent in short and put together again has the same
// count, and durations within 2%.
func TestBars(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l, again Latency
		micros := rapid.SliceOfN(rapid.Int64Range(0, highestLatency), 1, 300).Draw(t, "micros")
		for _, v := range micros {
			l.Record(v, 1)
		}
		durations, counts := l.Bars()
		for i, v := range durations {
			if i > 0 && v <= durations[i-1] {
				t.Fatalf("durations do not rise: %v", durations)
			}
			again.Record(int64(v), int64(counts[i]))
		}
		a, b := l.Histogram(), again.Histogram()
		if a.TotalCount() != b.TotalCount() {
			t.Fatalf("%d durations became %d", a.TotalCount(), b.TotalCount())
		}
		for _, q := range []float64{1, 50, 90, 99} {
			x, y := float64(a.ValueAtQuantile(q)), float64(b.ValueAtQuantile(q))
			if math.Abs(x-y) > 1+0.025*x { // the histogram's own 1% on top
				t.Fatalf("quantile %v: %v became %v", q, x, y)
			}
		}
	})
	if micros, counts := (*Latency)(nil).Bars(); len(micros)+len(counts) != 0 {
		t.Error("no distribution has no bars")
	}
}

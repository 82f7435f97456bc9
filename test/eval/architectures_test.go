package main

import (
	"math"
	"testing"
)

// A worker of each of 8 machines' 6, by hand: of 1,000 dense and 1,000 sparse values at
// 10%, of which the 6 workers use 40% together. Rings of 48 move 4 x 4,000 x 47/48 bytes
// of dense ones; servers have 7/8 elsewhere.
func TestArchitectures(t *testing.T) {
	j := job{dense: 1000, sparse: 1000, alpha: 0.1, union: 0.4, samples: 10}
	ring, far := 4*4000*47./48, 7./8
	want := []float64{ring + 2*400*47, 4 * 6 * (4000 + 400) * far, 2 * far * (6*4400 + 4000 + 1600), ring + 2*far*(6*400+1600), 4 * far * (4000 + 1600)}
	for i, got := range j.bytes() {
		if math.Abs(got-want[i]) > 1e-6 {
			t.Errorf("%s: %v bytes, want %v", architectures[i], got, want[i])
		}
	}
	j.compute = 1e-3
	if got, want := j.rates()[1], 48*10/(1e-3+want[1]*4/1e9); math.Abs(got-want) > 1e-6*want {
		t.Errorf("%v samples a second, want %v", got, want)
	}
}

// The sparse values' alpha and the dense ones' 1 give the model's of table 1.
func TestPublishedAlpha(t *testing.T) {
	for i, want := range []float64{0.02, 0.65} {
		j := published4()[i]
		if got := (j.dense + j.alpha*j.sparse) / (j.dense + j.sparse); math.Abs(got-want) > 1e-9 || j.union <= j.alpha || j.union > 1 {
			t.Errorf("%s: alpha %v, want %v; together %v", j.name, got, want, j.union)
		}
	}
}

package main

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSplitterEqualsSorting: what passes between parts of a model is what sorting says, forward
// and back, and is counted in training alone.
func TestSplitterEqualsSorting(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, sparsity := range []float64{0.5, 0.75, 0.9, 0.95} {
		const width, batch = 100, 20
		counts := &splits{}
		s := &splitter{counts: counts, sparsity: sparsity, looked: []float64{sparsity}}
		slow := &cutter{sparsity: sparsity}
		numbers := func() []float32 {
			v := make([]float32, width*batch)
			for i := range v {
				v[i] = float32(rng.NormFloat64())
			}
			return v
		}
		for step := range 3 {
			a, g := numbers(), numbers()
			wantA, wantG := slices.Clone(a), slices.Clone(g)
			s.Forward(slices.Clone(a), width) // a score
			s.Forward(a, width)
			s.Backward(g, width)
			slow.taus = nil
			slow.Forward(wantA, width)
			slow.Backward(wantG, width)
			if !slices.Equal(a, wantA) || !slices.Equal(g, wantG) {
				t.Fatalf("%v, step %d: other values passed", sparsity, step)
			}
			mean, _ := moments(slow.taus)
			if got := counts.taus[step][0]; got < mean*0.9999 || got > mean*1.0001 {
				t.Errorf("%v: mean threshold %v, want %v", sparsity, got, mean)
			}
		}
		if bytes := 3 * 4 * width * batch; counts.forward.plain != bytes || counts.back.plain != bytes {
			t.Errorf("%v: %+v of %d bytes", sparsity, counts, bytes)
		}
		if least := 0.8 / (1 - sparsity); counts.forward.ratio() < least || counts.back.ratio() < least {
			t.Errorf("%v: activations take 1/%.1f, gradients 1/%.1f", sparsity, counts.forward.ratio(), counts.back.ratio())
		}
	}
}

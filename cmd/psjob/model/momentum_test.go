package model

import (
	"slices"
	"testing"
)

// What is learned by is the sum of all gradients, each a factor smaller with
// every step since; without a factor it is the gradient.
func TestMomentumIsADecayingSumOfGradients(t *testing.T) {
	for factor, want := range map[float32][][]float32{
		0:   {{1, 0, 4}, {0, 2, 0}, {-1, 0, 0}},
		0.5: {{1, 0, 4}, {0.5, 2, 2}, {-0.75, 1, 1}},
	} {
		m := Momentum{Factor: factor}
		for step, g := range [][][]float32{{{1, 0}, {4}}, {{0, 2}, {0}}, {{-1, 0}, {0}}} {
			m.Apply(g)
			if got := slices.Concat(g...); !slices.Equal(got, want[step]) {
				t.Errorf("factor %v, step %d: %v, want %v", factor, step, got, want[step])
			}
		}
	}
}

package main

import (
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/model"
)

// TestGradientWatch: the threshold is that above which a quarter of the largest layer's values
// are, what waited among them.
func TestGradientWatch(t *testing.T) {
	groups := []model.Group{{Keys: []uint64{1, 2}, Width: 8}, {Keys: []uint64{3, 4}, Lens: []int32{2, 4}}}
	sparse := make([]float32, 16)
	w := &gradientWatch{sparsity: 0.75}
	w.see(groups, [][]float32{sparse, {9, 9, 1, -2, 3, 4}})
	w.see(groups, [][]float32{sparse, {9, 9, 1, -2, 0.5, 0}})
	w.see(groups[:1], [][]float32{sparse})
	if len(w.taus) != 2 || w.taus[0] != 3 || w.taus[1] != 2 {
		t.Errorf("thresholds %v, want 3 and 2", w.taus)
	}
}

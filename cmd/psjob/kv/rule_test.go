package kv

import (
	"math"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// With momentum each step learns by all gradients so far, and all values decay,
// also where a step pushes zeros.
func TestMomentumAndDecay(t *testing.T) {
	s := newStore(t, StoreSettings{Rule: "sgd", LearningRate: 0.1, L2: 0.5, Momentum: 0.9, Synchronous: true})
	w, v := 0.0, 0.0
	for step := range int32(20) {
		g := 1.0
		if step%3 > 0 {
			g = 0
		}
		require.NoError(t, s.Push(step, []uint64{7}, []float32{float32(g)}, nil))
		v = 0.9*v + g + 0.5*w
		w -= 0.1 * v
		got, err := s.Pull(step+1, []uint64{7}, nil, nil)
		if err != nil || math.Abs(float64(got[0])-w) > 1e-5 {
			t.Fatalf("step %d: %v, %v, want %g", step, got, err, w)
		}
	}
	for _, bad := range []StoreSettings{{Rule: "sgd", Momentum: 1}, {Rule: "sgd", Momentum: -0.1}, {Rule: "ftrl", Momentum: 0.9}} {
		if bad.Check() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

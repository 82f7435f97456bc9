package threshold

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
)

// chosen is a layer under a threshold that is chosen, and random gradients whose scale at a step is
// given; every eighth one is measured. It returns what share of the numbers each step sent, and how
// many steps' gradient waited at those that were measured.
func chosen(t *testing.T, steps int, c Config, scale func(step int) float64) (shares []float64, held map[int]float64) {
	t.Helper()
	const n = 4000
	l := require.Value(NewLayer(element.Float32, n, c))(t)
	rng := rand.New(rand.NewPCG(3, 1))
	var w Workspace
	var out sparse.Vector
	held = map[int]float64{}
	g := make([]byte, 4*n)
	for step := range steps {
		squares := 0.0
		for i := range n {
			// Of each number the gradient has a direction, and noise.
			x := scale(step) * (rng.NormFloat64() + 0.1*float64(i%7-3))
			element.Float32.Put(g, i, x)
			squares += x * x
		}
		require.NoError(t, l.Compress(&w, &out, g))
		shares = append(shares, float64(out.Count())/n)
		if step%8 == 7 {
			_, waits := l.Residual()
			held[step] = math.Sqrt(waits / squares)
			l.Adapt(held[step])
		}
	}
	return shares, held
}

var auto = Config{Sparsity: 0.99, Lifespan: 1000, Slack: 0.1, Auto: true}

// What waits stays at a share of the training so far, so that less is sent as it goes on.
func TestAuto(t *testing.T) {
	shares, held := chosen(t, 2000, auto, func(int) float64 { return 1 })
	for step, h := range held {
		if most := 1.5 * max(autoLeast, autoLag*float64(step)); step >= 64 && h > most {
			t.Errorf("after step %d %.1f steps' gradient waits, at most %.1f", step, h, most)
		}
	}
	if first := mean(shares[:8]); first < 0.2 || first > 0.3 {
		t.Errorf("%.3f of the numbers went at first", first)
	}
	if last := mean(shares[1900:]); last > 0.05 || last < 0.009 {
		t.Errorf("%.3f of the numbers went in the end", last)
	}
}

// Where gradients become a thousandth, what waits is many of them, and more is sent until it is gone.
func TestAutoWhereTheScaleChanges(t *testing.T) {
	const change = 1600
	shares, held := chosen(t, 2000, auto, func(step int) float64 {
		if step < change {
			return 1
		}
		return 0.001
	})
	if before, after := slices.Max(shares[change-100:change]), slices.Max(shares[change+8:change+40]); after < 1.5*before {
		t.Errorf("at most %.4f of the numbers went before, %.4f after", before, after)
	}
	if h := held[1999]; h > 1.5*autoLag*2000 {
		t.Errorf("%.1f steps' gradient waits in the end", h)
	}
}

// The share stays within its bounds, and without Auto nothing changes.
func TestAutoBounds(t *testing.T) {
	for _, least := range []float64{0.01, 0.3, 0.8} {
		share := 0.25
		for range 20 {
			share = adapted(share, 0, 1000, least)
		}
		if share != least {
			t.Errorf("with nothing held back %v is sent, want %v", share, least)
		}
		for range 20 {
			share = adapted(share, math.Inf(1), 1000, least)
		}
		if share != max(autoMost, least) {
			t.Errorf("with all held back %v is sent, want at least %v", share, autoMost)
		}
	}
	for _, held := range []float64{0, 1000, math.NaN(), math.Inf(1)} {
		fixed := require.Value(NewLayer(element.Float32, 10, DefaultConfig))(t)
		if fixed.Adapt(held); fixed.Sparsity() != DefaultConfig.Sparsity {
			t.Errorf("without Auto %v wait after %v", fixed.Sparsity(), held)
		}
	}
	l := require.Value(NewLayer(element.Float32, 10, auto))(t)
	if l.Adapt(math.NaN()); l.Sparsity() != 1-autoFirst {
		t.Errorf("%v waits after a step of zeros", l.Sparsity())
	}
}

package threshold

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
)

// shares are what share of the numbers each push sends, of random gradients. renewals is how many
// of the pushes computed a threshold.
func shares(t *testing.T, n, pushes int, c Config) (shares []float64, renewals int) {
	t.Helper()
	l := require.Value(NewLayer(element.Float32, n, c))(t)
	rng := rand.New(rand.NewPCG(1, 1))
	var w Workspace
	var out sparse.Vector
	shares = make([]float64, pushes)
	g := make([]byte, 4*n)
	for push := range shares {
		for i := range n {
			element.Float32.Put(g, i, rng.NormFloat64())
		}
		require.NoError(t, l.Compress(&w, &out, g))
		shares[push] = float64(out.Count()) / float64(n)
		if l.renewed == push {
			renewals++
		}
	}
	return shares, renewals
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// While the residual fills, a threshold that was found without it lets far too
// much through; slack renews it in time.
func TestSlackKeepsTheShare(t *testing.T) {
	const n, pushes = 5000, 600
	fixed, renewals := shares(t, n, pushes, Config{Sparsity: 0.99, Lifespan: 1000})
	if got := mean(fixed); got < 0.05 || renewals != 1 {
		t.Errorf("without slack %.3f of the numbers went on average, after %d renewals", got, renewals)
	}
	adapted, renewals := shares(t, n, pushes, Config{Sparsity: 0.99, Lifespan: 1000, Slack: 0.1})
	if got := mean(adapted); got > 0.0115 || got < 0.009 {
		t.Errorf("with slack %.4f of the numbers went on average", got)
	}
	if renewals > pushes/4 {
		t.Errorf("%d renewals in %d pushes", renewals, pushes)
	}
	t.Logf("fixed %.4f, with slack %.4f, %d renewals", mean(fixed), mean(adapted), renewals)
}

// In a warm-up the share that is sent falls exponentially from nearly all.
func TestWarmup(t *testing.T) {
	const warmup = 64
	got, _ := shares(t, 5000, 2*warmup, Config{Sparsity: 0.99, Lifespan: 1000, Slack: 0.1, Warmup: warmup})
	for push, share := range got[:warmup] {
		want := math.Pow(0.01, float64(push+1)/(warmup+1))
		if share < want*0.6-0.005 || share > want*1.6+0.005 {
			t.Errorf("push %d sent %.4f of the numbers, want about %.4f", push, share, want)
		}
	}
	if last := mean(got[warmup:]); last > 0.012 {
		t.Errorf("%.4f of the numbers went after the warm-up", last)
	}
}

// A threshold is renewed after its lifespan, and draining happens about as often
// as it should, at the same pushes each time.
func TestLifespanAndDraining(t *testing.T) {
	const pushes = 2000
	c := Config{Sparsity: 0.9, Lifespan: 7, DrainEvery: 40, Seed: 5}
	first, renewals := shares(t, 200, pushes, c)
	if want := (pushes + 6) / 7; renewals != want {
		t.Errorf("%d renewals, want %d", renewals, want)
	}
	full := 0
	for _, share := range first {
		if share == 1 {
			full++
		}
	}
	if math.Abs(float64(full)-pushes/40) > 5*math.Sqrt(pushes/40) {
		t.Errorf("%d of %d pushes drained", full, pushes)
	}
	again, _ := shares(t, 200, pushes, c)
	for push := range first {
		if first[push] != again[push] {
			t.Fatalf("push %d sent %g, and %g when repeated", push, first[push], again[push])
		}
	}
}

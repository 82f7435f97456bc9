package threshold

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
)

// Where no sum rounds, what was sent and what is left is the sum of the gradients:
// compared in arithmetic of 400 bits.
func TestNothingIsLost(t *testing.T) {
	for _, kind := range allKinds {
		rng := rand.New(rand.NewPCG(1, uint64(kind)))
		const n, pushes = 2000, 120
		l := require.Value(NewLayer(kind, n, Config{Sparsity: 0.97, Lifespan: 10, Slack: 0.1, DrainEvery: 50}))(t)
		pushed, sent := make([]*big.Float, n), make([]*big.Float, n)
		for i := range n {
			pushed[i], sent[i] = new(big.Float).SetPrec(400), new(big.Float).SetPrec(400)
		}
		var w Workspace
		var out sparse.Vector
		for push := range pushes {
			g := make([]float64, n)
			for i := range g {
				g[i] = math.Round(rng.NormFloat64() * 10 * (1 + float64(i%5))) // sums of whole numbers do not round
			}
			require.NoError(t, l.Compress(&w, &out, bytesOf(kind, g)))
			if push == pushes-1 {
				add(sent, whole(&out))
				l.Flush(&out)
			}
			add(pushed, g)
			add(sent, whole(&out))
		}
		add(sent, left(l))
		for i := range n {
			if pushed[i].Cmp(sent[i]) != 0 {
				t.Fatalf("%v, number %d: %s pushed, %s sent or left", kind, i, pushed[i].Text('g', 30), sent[i].Text('g', 30))
			}
		}
	}
}

func add(sums []*big.Float, numbers []float64) {
	for i, v := range numbers {
		sums[i].Add(sums[i], new(big.Float).SetFloat64(v))
	}
}

// Where sums round, no more than half a unit in the last place is lost for each push.
func TestRoundingIsAllThatIsLost(t *testing.T) {
	const n, pushes = 500, 300
	rng := rand.New(rand.NewPCG(3, 4))
	l := require.Value(NewLayer(element.Float32, n, Config{Sparsity: 0.95, Lifespan: 1000}))(t)
	var w Workspace
	var out sparse.Vector
	pushed, sent, bound := make([]float64, n), make([]float64, n), make([]float64, n)
	for range pushes {
		g := make([]float64, n)
		for i := range g {
			g[i] = rng.NormFloat64()
			if i%2 == 0 {
				g[i] = math.Round(g[i] * 1000)
			}
		}
		b := bytesOf(element.Float32, g)
		for i, e := range left(l) {
			if exact := g[i] + e; exact != float64(float32(exact)) {
				bound[i] += math.Abs(exact) * 0x1p-24
			}
			pushed[i] += g[i]
		}
		require.NoError(t, l.Compress(&w, &out, b))
		for i, v := range whole(&out) {
			sent[i] += v
		}
	}
	for i, e := range left(l) {
		if gap := math.Abs(sent[i] + e - pushed[i]); gap > bound[i]+1e-12 {
			t.Errorf("number %d: %g lost, at most %g rounded", i, gap, bound[i])
		}
		if i%2 == 0 && bound[i] != 0 {
			t.Errorf("number %d: whole numbers rounded", i)
		}
	}
}

func TestFlushEmptiesTheResidual(t *testing.T) {
	for _, kind := range allKinds {
		l := require.Value(NewLayer(kind, 100, Config{Sparsity: 0.9, Lifespan: 1}))(t)
		g := make([]float64, 100)
		for i := range g {
			g[i] = float64(i) / 128
		}
		var w Workspace
		var out sparse.Vector
		require.NoError(t, l.Compress(&w, &out, bytesOf(kind, g)))
		first := whole(&out)
		if count, squares := l.Residual(); count != 88 || !(squares > 0) {
			t.Errorf("%v: a residual of %d numbers, squares %g", kind, count, squares)
		}
		if !l.Flush(&out) {
			t.Errorf("%v: nothing flushed", kind)
		}
		for i, v := range whole(&out) {
			if v+first[i] != g[i] {
				t.Fatalf("%v: number %d is %g + %g, want %g", kind, i, first[i], v, g[i])
			}
		}
		if count, _ := l.Residual(); count != 0 || l.Flush(&out) {
			t.Errorf("%v: %d numbers left after a flush", kind, count)
		}
	}
}

// A layer that grows while it is in use keeps what was left, and loses nothing.
func TestLayerGrows(t *testing.T) {
	c := DefaultConfig
	c.Sparsity = 0.9
	l := require.Value(NewLayer(element.Float32, 0, c))(t)
	var w Workspace
	var out sparse.Vector
	sum := 0.0
	for n := range 200 {
		l.Grow(n + 1)
		l.Grow(n) // no shorter
		g := make([]byte, 4)
		element.Float32.Put(g, 0, float64(n%7+1))
		sum += float64(n%7 + 1)
		for i, at := range []uint32{uint32(n), uint32(n / 2)} {
			if i == 1 {
				element.Float32.Put(g, 0, 0)
			}
			require.NoError(t, l.CompressAt(&w, &out, []uint32{at}, g))
			for i := range out.Count() {
				sum -= element.Float32.At(out.Values, i)
			}
		}
	}
	if l.Len() != 200 || l.Bytes() != 200*ResidualSize(element.Float32) {
		t.Errorf("%d numbers in %d bytes", l.Len(), l.Bytes())
	}
	l.Flush(&out)
	for i := range out.Count() {
		sum -= element.Float32.At(out.Values, i)
	}
	if sum != 0 {
		t.Errorf("%v of what was pushed is neither sent nor left", sum)
	}
}

package threshold

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
)

func TestNotFiniteIsSentAndForgotten(t *testing.T) {
	for _, kind := range allKinds {
		l := require.Value(NewLayer(kind, 4, Config{Sparsity: 0.9, Lifespan: 100}))(t)
		var w Workspace
		var out sparse.Vector
		for _, g := range [][]float64{{1, 2, 3, 4}, {math.NaN(), math.Inf(1), math.Inf(-1), 0}} {
			require.NoError(t, l.Compress(&w, &out, bytesOf(kind, g)))
		}
		got := whole(&out)
		if got[0] == got[0] || got[1] != math.Inf(1) || got[2] != math.Inf(-1) {
			t.Errorf("%v: sent %v", kind, got)
		}
		if l.Stats().NonFinite != 3 {
			t.Errorf("%v: %d numbers counted as not finite", kind, l.Stats().NonFinite)
		}
		if e := left(l); !slices.Equal(e[:3], []float64{0, 0, 0}) {
			t.Errorf("%v: residual %v", kind, e)
		}
	}
}

// With nothing but NaNs and infinities there is no threshold to find, and the
// next gradient goes through.
func TestAllNotFinite(t *testing.T) {
	l := require.Value(NewLayer(element.Float32, 100, Config{Sparsity: 0.99, Lifespan: 100}))(t)
	g := make([]float64, 100)
	for i := range g {
		g[i] = math.NaN()
	}
	var w Workspace
	var out sparse.Vector
	require.NoError(t, l.Compress(&w, &out, bytesOf(element.Float32, g)))
	if out.Count() != 100 || l.Threshold() != 0 {
		t.Errorf("%d sent, threshold %g", out.Count(), l.Threshold())
	}
	if err := l.Compress(&w, &out, bytesOf(element.Float32, []float64{99: 5})); err != nil || out.Count() != 1 {
		t.Errorf("%d sent after that, %v", out.Count(), err)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []Config{
		{Sparsity: 1, Lifespan: 1}, {Sparsity: -0.1, Lifespan: 1}, {Sparsity: math.NaN(), Lifespan: 1},
		{Sparsity: 0.9}, {Sparsity: 0.9, Lifespan: 1, Warmup: -1}, {Sparsity: 0.9, Lifespan: 1, Slack: -1},
		{Sparsity: 0.9, Lifespan: 1, DrainEvery: -1},
	} {
		if _, err := NewLayer(element.Float32, 10, c); err == nil || !strings.Contains(err.Error(), "must") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	l := require.Value(NewLayer(element.Float32, 10, DefaultConfig))(t)
	var w Workspace
	var out sparse.Vector
	if err := l.Compress(&w, &out, make([]byte, 36)); !errors.Is(err, ErrLength) {
		t.Errorf("a gradient of 9 numbers for a layer of 10: %v", err)
	}
	if err := l.CompressAt(&w, &out, []uint32{10}, make([]byte, 4)); err == nil {
		t.Error("a position beyond the layer was taken")
	}
	if err := l.CompressAt(&w, &out, []uint32{1}, make([]byte, 5)); !errors.Is(err, ErrLength) {
		t.Errorf("5 bytes for one number: %v", err)
	}
	if l.Stats().Pushes != 0 {
		t.Error("a refused gradient was counted")
	}
}

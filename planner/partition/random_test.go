package partition

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// drawProblem draws a small graph and options that some assignment satisfies.
func drawProblem(t *rapid.T) (*graph.Graph, Options) {
	n := rapid.IntRange(1, 40).Draw(t, "n")
	rows := make([][]uint64, n)
	for s := range rows {
		rows[s] = rapid.SliceOfNDistinct(rapid.Uint64Range(0, 30), 0, 8, rapid.ID).Draw(t, "row")
	}
	g := require.Value(graph.FromRows(rows))(t)
	k := rapid.IntRange(1, n).Draw(t, "k")
	o := Options{K: k, Seed: rapid.Uint64().Draw(t, "seed")}
	machine := rapid.Int32Range(-1, int32(k-1))
	if rapid.Bool().Draw(t, "fixed") {
		o.FixedSamples = make([]int32, n)
		for s := range o.FixedSamples {
			o.FixedSamples[s] = -1
		}
		o.FixedSamples[0] = machine.Draw(t, "machine")
	}
	if rapid.Bool().Draw(t, "capacity") && o.FixedSamples == nil {
		o.Capacity = rapid.SliceOfN(rapid.Float64Range(0.5, 3), k, k).Draw(t, "capacities")
	}
	return g, o
}

func TestRandomKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, o := drawProblem(t)
		a := require.Value(Random(t.Context(), g, o))(t)
		require.NoError(t, Check(g, a, o))
	})
}

func TestRandomIsEven(t *testing.T) {
	g := require.Value(graphs.Random{Samples: 10_001, Params: 20_000, Degree: 8, Seed: 1}.Build(t.Context()))(t)
	const k = 8
	a := require.Value(Random(t.Context(), g, Options{K: k, Seed: 1}))(t)
	var samples, params [k]int
	for _, i := range a.Samples {
		samples[i]++
	}
	for _, i := range a.Params {
		params[i]++
	}
	for i := range k {
		if samples[i] < 10_001/k || samples[i] > 10_001/k+1 {
			t.Errorf("machine %d has %d of 10001 samples", i, samples[i])
		}
		if mean := g.Params() / k; params[i] < mean*9/10 || params[i] > mean*11/10 {
			t.Errorf("machine %d has %d of %d parameters", i, params[i], g.Params())
		}
	}
	if b, _ := Random(t.Context(), g, Options{K: k, Seed: 2}); Measure(g, a, k).Total == Measure(g, b, k).Total {
		t.Error("two seeds give one total")
	}
}

// Package partitiontest draws small graphs and options for property tests of partitioners. They are
// small so that a slow, obvious version can be compared with, and so that rapid shrinks failures to
// a few edges.
package partitiontest

import (
	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/require"
)

// Graph draws a graph of at most that many samples and parameters. A third of the graphs have
// weights.
func Graph(t *rapid.T, maxSamples, maxParams int) *graph.Graph {
	n := rapid.IntRange(1, maxSamples).Draw(t, "n")
	// A sample may have no parameter at all; partitioners must cope with that.
	row := rapid.SliceOfNDistinct(rapid.Uint64Range(1, uint64(maxParams)), 0, min(maxParams, 12), rapid.ID)
	g, err := graph.FromRows(rapid.SliceOfN(row, n, n).Draw(t, "rows"))
	require.NoError(t, err)
	weights := func(name string, n int) []uint32 {
		if n == 0 || rapid.IntRange(0, 2).Draw(t, name+"?") > 0 {
			return nil
		}
		// Weights are small, so that sums of a few of them coincide and ties occur.
		return rapid.SliceOfN(rapid.Uint32Range(1, 5), n, n).Draw(t, name)
	}
	g = require.Value(g.WithWeights(weights("parameter weights", g.Params()), weights("sample weights", n)))(t)
	return g
}

// Options draws options for up to maxK machines that Validate accepts for the graph. Each
// constraint is present a quarter of the time, so that most combinations occur. A property must
// hold for all of them, or the partitioner must return an error.
func Options(t *rapid.T, g *graph.Graph, maxK int) partition.Options {
	maybe := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 0 }
	// Constraints drawn independently may contradict each other; draw again until they do not.
	for {
		o := partition.Options{K: rapid.IntRange(1, min(maxK, g.Samples())).Draw(t, "k"), Seed: rapid.Uint64().Draw(t, "seed")}
		if maybe("capacity?") {
			o.Capacity = rapid.SliceOfN(rapid.SampledFrom([]float64{1, 2, 4}), o.K, o.K).Draw(t, "capacity")
		}
		if maybe("speed?") {
			o.Speed = rapid.SliceOfN(rapid.SampledFrom([]float64{1, 2, 4}), o.K, o.K).Draw(t, "speed")
		}
		if maybe("theta?") {
			o.Theta = rapid.Int64Range(1, 60).Draw(t, "theta")
		}
		if maybe("fixed samples?") {
			o.FixedSamples = rapid.SliceOfN(rapid.SampledFrom([]int32{-1, -1, -1, int32(o.K - 1)}), g.Samples(), g.Samples()).Draw(t, "fixed samples")
		}
		if o.Validate(g) == nil {
			return o
		}
	}
}

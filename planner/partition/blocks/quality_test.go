package blocks_test

import (
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/blocks"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// TestQuality states how much the busiest machine moves beside a partition of the same data, with
// the same memory and passes, in which each sample is given away with the choices of all before it
// known; such partitions were made once.
func TestQuality(t *testing.T) {
	require.Time(t)
	t.Run("drawn", func(t *testing.T) {
		g, err := graphs.Random{Samples: 20_000, Params: 40_000, Degree: 30, Exponent: 0.9, Topics: 40, TopicShare: 0.7, Seed: 3}.Build(t.Context())
		require.NoError(t, err)
		quality(t, g, 35_494)
	})
	for name, inTurn := range map[string]int64{"rcv1-excerpt": 13_550, "soc-slashdot": 30_302, "criteo-80k": 24_394} {
		t.Run(name, func(t *testing.T) {
			g := require.Value(graphs.FromFile(t.Context(), require.Dataset(t, name+".libsvm.xz"), dataset.Options{}))(t)
			quality(t, g, inTurn)
		})
	}
}

func quality(t *testing.T, g *graph.Graph, inTurn int64) {
	const k, memory = 8, 256 << 20
	n, buckets, err := blocks.Fit(int64(g.Samples()), g.Edges(), k, memory)
	require.NoError(t, err)
	a, err := blocks.Partition(t.Context(), g, blocks.Options{K: k, Seed: 1, Blocks: n, Buckets: buckets, Passes: blocks.DefaultPasses})
	require.NoError(t, err)
	require.NoError(t, partition.Check(g, a, partition.Options{K: k}))
	got := partition.Measure(g, a, k)
	ratio := float64(got.Max) / float64(inTurn)
	t.Logf("%d blocks, %d buckets: max %d, total %d, max/bound %.3f; in turn: max %d; ratio %.3f", n, buckets, got.Max, got.Total, float64(got.Max)*k/2/float64(got.Total), inTurn, ratio)
	if ratio > 1.1 {
		t.Error("has been at most 1.1 times as much as in turn")
	}
}

package blocks_test

import (
	"context"
	"testing"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/blocks"
	"github.com/psidecar/psidecar/planner/partition/stream"
	"github.com/psidecar/psidecar/test/require"
)

// TestQuality states how much the busiest machine moves beside a streamed
// partition of the same data, which sees every choice before the next.
func TestQuality(t *testing.T) {
	t.Run("drawn", func(t *testing.T) {
		g, err := graph.Random{Samples: 20_000, Params: 40_000, Degree: 30, Exponent: 0.9, Topics: 40, TopicShare: 0.7, Seed: 3}.Build(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		quality(t, g)
	})
	for _, name := range []string{"rcv1-excerpt", "soc-slashdot", "criteo-80k"} {
		t.Run(name, func(t *testing.T) {
			g, err := graph.FromFile(t.Context(), require.Dataset(t, name+".libsvm.xz"), dataset.Options{})
			if err != nil {
				t.Fatal(err)
			}
			quality(t, g)
		})
	}
}

func quality(t *testing.T, g *graph.Graph) {
	const k, memory = 8, 256 << 20
	source := func(_ context.Context, _ int, each func([]uint64) (int, error)) error {
		var ids []uint64
		for s := range g.Samples() {
			ids = ids[:0]
			for _, p := range g.ParamsOf(s) {
				ids = append(ids, g.Feature(int(p)))
			}
			if _, err := each(ids); err != nil {
				return err
			}
		}
		return nil
	}
	streamed, err := stream.Partition(t.Context(), source, stream.Options{K: k, Memory: memory, Passes: stream.DefaultPasses, Scratch: t.TempDir()}, func(uint64, int) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	n, buckets, err := blocks.Fit(int64(g.Samples()), g.Edges(), k, memory)
	if err != nil {
		t.Fatal(err)
	}
	a, err := blocks.Partition(t.Context(), g, blocks.Options{K: k, Seed: 1, Blocks: n, Buckets: buckets, Passes: blocks.DefaultPasses})
	if err != nil {
		t.Fatal(err)
	}
	if err := partition.Check(g, a, partition.Options{K: k}); err != nil {
		t.Fatal(err)
	}
	got := partition.Measure(g, a, k)
	ratio := float64(got.Max) / float64(streamed.Traffic.Max)
	t.Logf("%d blocks, %d buckets: max %d, total %d, max/bound %.3f; streamed: max %d; ratio %.3f", n, buckets, got.Max, got.Total, float64(got.Max)*k/2/float64(got.Total), streamed.Traffic.Max, ratio)
	if ratio > 1.1 {
		t.Error("has been at most 1.1 times as much as streamed")
	}
}

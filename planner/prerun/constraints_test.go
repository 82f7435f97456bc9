package prerun_test

import (
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// TestConstraints sets each constraint for each algorithm, alone. Link speeds
// are no condition that a partition meets or not: there, the busiest link must
// be less busy than without them.
func TestConstraints(t *testing.T) {
	g, err := graphs.Random{Samples: 300, Params: 450, Degree: 8, Exponent: 0.6, Topics: 8, TopicShare: 0.7, Seed: 3}.Build(t.Context())
	require.NoError(t, err)
	const k = 4
	const budget = 100 * time.Millisecond // of best
	samples := slices.Repeat([]int32{-1}, g.Samples())
	for i := range 30 {
		samples[i*3] = 2
	}
	constraints := []struct {
		name string
		o    partition.Options
	}{
		{"capacity", partition.Options{Capacity: []float64{1, 2, 3, 4}}},
		{"link speed", partition.Options{Speed: []float64{4, 1, 1, 1}}},
		{"theta", partition.Options{Theta: int64(g.Params())}},
		{"fixed samples", partition.Options{FixedSamples: samples}},
	}
	for _, al := range prerun.AllAlgorithms() {
		for _, c := range constraints {
			t.Run(al.Name+"/"+c.name, func(t *testing.T) {
				c.o.K, c.o.Seed, c.o.Budget = k, 1, budget
				a := require.Value(al.Partition(t.Context(), g, c.o))(t)
				if err := partition.Check(g, a, c.o); err != nil {
					t.Error(err)
				}
				if c.o.Speed == nil {
					return
				}
				alike := require.Value(al.Partition(t.Context(), g, partition.Options{K: k, Seed: 1, Budget: budget}))(t)
				with, without := slices.Max(partition.Loads(g, a, c.o)), slices.Max(partition.Loads(g, alike, c.o))
				if with >= without {
					t.Errorf("the busiest link has %.0f, and %.0f where speeds are taken to be alike", with, without)
				}
			})
		}
	}
}

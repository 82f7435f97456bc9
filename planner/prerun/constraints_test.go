package prerun_test

import (
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
)

// TestConstraints sets each constraint for each algorithm, alone. Link speeds
// are no condition that a partition meets or not: there, the busiest link must
// be less busy than without them.
func TestConstraints(t *testing.T) {
	g, err := graph.Random{Samples: 300, Params: 450, Degree: 8, Exponent: 0.6, Topics: 8, TopicShare: 0.7, Seed: 3}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const k = 4
	const budget = 100 * time.Millisecond // of best
	free := func(n int) []int32 { return slices.Repeat([]int32{-1}, n) }
	group, samples, params := free(g.Params()), free(g.Samples()), free(g.Params())
	for i := range 30 {
		group[i*7] = int32(i % 5)
		samples[i*3] = 2
		params[i*5+1] = int32(i % k)
	}
	constraints := []struct {
		name string
		o    partition.Options
	}{
		{"capacity", partition.Options{Capacity: []float64{1, 2, 3, 4}}},
		{"link speed", partition.Options{Speed: []float64{4, 1, 1, 1}}},
		{"theta", partition.Options{Theta: int64(g.Params())}},
		{"groups", partition.Options{Group: group}},
		{"fixed samples", partition.Options{FixedSamples: samples}},
		{"fixed parameters", partition.Options{FixedParams: params}},
	}
	for _, al := range prerun.AllAlgorithms() {
		for _, c := range constraints {
			t.Run(al.Name+"/"+c.name, func(t *testing.T) {
				c.o.K, c.o.Seed, c.o.Budget = k, 1, budget
				a, err := al.Partition(t.Context(), g, c.o)
				if err != nil {
					t.Fatal(err)
				}
				if err := partition.Check(g, a, c.o); err != nil {
					t.Error(err)
				}
				if c.o.Speed == nil {
					return
				}
				alike, err := al.Partition(t.Context(), g, partition.Options{K: k, Seed: 1, Budget: budget})
				if err != nil {
					t.Fatal(err)
				}
				with, without := slices.Max(partition.Loads(g, a, c.o)), slices.Max(partition.Loads(g, alike, c.o))
				if with >= without {
					t.Errorf("the busiest link has %.0f, and %.0f where speeds are taken to be alike", with, without)
				}
			})
		}
	}
}

package twostep

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// TestLookingAheadChangesNothing compares with DWW21 Alg. 1 step by step on
// graphs on which machines look many samples ahead, and want the same ones.
func TestLookingAheadChangesNothing(t *testing.T) {
	for seed := range uint64(6) {
		g, err := graphs.Random{Samples: 3000, Params: 1500, Degree: 6, Exponent: 0.8, Topics: 4, TopicShare: 0.8, Seed: seed}.Build(t.Context())
		require.NoError(t, err)
		if seed%2 == 1 {
			weights := make([]uint32, g.Params())
			for p := range weights {
				weights[p] = 1 + uint32(p)%3
			}
			g = require.Value(g.WithWeights(weights, nil))(t)
		}
		o := partition.Options{K: 3 + int(seed)}
		got := require.Value(divideSamples(t.Context(), g, o, Rules{Alpha: 1}))(t)
		if want := stepByStep(g, o); !slices.Equal(got, want) {
			t.Errorf("seed %d: machines of the samples differ", seed)
		}
	}
}

// stepByStep looks at all samples before each is given.
func stepByStep(g *graph.Graph, o partition.Options) []int32 {
	machine := slices.Repeat([]int32{-1}, g.Samples())
	covered := make([][]bool, o.K)
	for i := range covered {
		covered[i] = make([]bool, g.Params())
	}
	for turn := range machine { // all take in turn, as many each
		i := turn % o.K
		best, least := -1, uint32(0)
		for s := range machine {
			if machine[s] >= 0 {
				continue
			}
			cost := uint32(0)
			for _, p := range g.ParamsOf(s) {
				if !covered[i][p] {
					cost += g.ParamWeight(int(p))
				}
			}
			if best < 0 || cost < least {
				best, least = s, cost
			}
		}
		machine[best] = int32(i)
		for _, p := range g.ParamsOf(best) {
			covered[i][p] = true
		}
	}
	return machine
}

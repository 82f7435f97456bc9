package best

import (
	"context"
	"math/rand/v2"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// reduce returns g as a hypergraph with its samples in random order, and the sample of each vertex.
// In random order any run of vertices is a random sample.
func reduce(ctx context.Context, g *graph.Graph, o partition.Options) (*hypergraph, []int, error) {
	n, m := g.Samples(), g.Params()
	samples := rand.New(rand.NewPCG(o.Seed, 0)).Perm(n)
	r := rows{
		start: make([]int, n+1), pins: make([]uint32, g.Edges()),
		netWeight: make([]int32, m),
	}
	for v, s := range samples {
		r.start[v+1] = r.start[v] + len(g.ParamsOf(s))
	}
	weight := make([]int32, n)
	var home []int32
	if o.FixedSamples != nil {
		home = make([]int32, n)
	}
	err := partition.ShareLoop(ctx, n, func(_, from, to int) {
		for v := from; v < to; v++ {
			s := samples[v]
			copy(r.row(v), g.ParamsOf(s))
			weight[v] = int32(g.SampleWeight(s))
			if home != nil {
				home[v] = o.FixedSamples[s]
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for p := range m {
		r.netWeight[p] = rounded(int64(g.ParamWeight(p)))
	}
	h, err := build(ctx, r, weight, make([]int64, n), home)
	return h, samples, err
}

package best

import (
	"cmp"
	"context"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/multilevel"

	"github.com/psidecar/psidecar/planner/partition/twostep"
)

// If blocks have few samples each, limits bind tightly, and annealing, which moves one sample at a
// time, may end far from the optimum. Graphs with work up to fewStarts are annealed from several
// starts, at most mostStarts. The papers' algorithms, which take almost no time on graphs of up to
// fewEdges, are tried too.
const (
	fewStarts  = 80_000_000
	mostStarts = 4
	fewEdges   = 100_000
)

// ask returns the best assignment among those of the partitioners, or the first error if none
// succeeds.
func ask(ctx context.Context, g *graph.Graph, o partition.Options, all []partition.Partitioner) (*partition.Assignment, error) {
	var least *partition.Assignment
	var leastLoads []float64
	var failed error
	for _, f := range all {
		a, err := f(ctx, g, o)
		if err == nil {
			err = partition.Check(g, a, o)
		}
		// A cancelled run must not return the result of the starts that were finished by chance.
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		if loads := partition.Loads(g, a, o); least == nil || compareLoads(loads, leastLoads) < 0 {
			least, leastLoads = a, loads
		}
	}
	if least == nil {
		return nil, failed
	}
	return least, nil
}

// compareLoads compares the busiest machine's load, then the sum of all loads.
func compareLoads(a, b []float64) int {
	sum := func(loads []float64) (sum float64) {
		for _, l := range loads {
			sum += l
		}
		return sum
	}
	return cmp.Or(cmp.Compare(slices.Max(a), slices.Max(b)), cmp.Compare(sum(a), sum(b)))
}

// others returns the papers' algorithms, each with its own owners and with owners placed as for
// annealed samples; none for large graphs.
func others(g *graph.Graph) (all []partition.Partitioner) {
	if g.Edges() > fewEdges {
		return nil
	}
	for _, f := range []partition.Partitioner{twostep.TSH1, twostep.TSH2, multilevel.MBP, twostep.DPPA} {
		all = append(all, f, func(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
			a, err := f(ctx, g, o)
			if err != nil {
				return nil, err
			}
			a.Params, err = partition.FlatOwners(ctx, g, a.Samples, o)
			return a, err
		})
	}
	return all
}

// Package multilevel has MBP, the multilevel bipartite partition of DWW21 section 5. Samples and
// parameters are merged pairwise until few are left, and those are divided. Then the merging is
// undone step by step, and at each step samples and parameters move to where they save the most.
//
// # Model
//
// Within the package a graph is a hypergraph: a parameter is a net, whose pins are the samples that
// use it and the parameter itself, as a vertex that can be placed. With lambda the number of
// machines that have a pin of the net and w its weight, w (lambda - 1) is what moves in a step,
// since all of these machines but the one with the parameter transfer it. MBP minimizes the sum
// over all nets, and keeps machines from getting far above the mean on the way.
//
// # Files
//
//   - level.go has the hypergraph at one stage, coarsen.go makes the next coarser one.
//   - initial.go divides the coarsest level at random.
//   - refine.go is the Fiduccia-Mattheyses refinement of a level, with the gains in gains.go and
//     the order of moves in queue.go.
//   - balance.go enforces the sample limits at the finest level.
//
// Everything runs on the caller's goroutine, and the result is a function of graph, options and
// seed.
package multilevel

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/twostep"
)

const (
	// verticesPerMachine is the number of merged samples per machine at which coarsening stops.
	verticesPerMachine = 20
	// starts is the number of initial partitions, of which the best is refined.
	starts = 8
	// slack is the fraction by which a machine may exceed its limit while vertices move.
	slack = 0.03
)

// MBP is a [partition.Partitioner], DWW21's multilevel bipartite partition. Its last step places
// the parameters again by Alg. 2, for the busiest machine instead of the sum, and keeps the better
// of both placements. Memory is that of all levels together, about twice that of the finest, and 4
// k bytes for each vertex and net.
func MBP(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(o.Seed, 0x3b9))
	finest, err := newLevel(g, o)
	if err != nil {
		return nil, err
	}
	levels := []*level{finest}
	for {
		// Each level has at most 95% of the samples of the one before, usually about half.
		next := coarsen(levels[len(levels)-1], verticesPerMachine*o.K, o.K, random)
		if next == nil {
			break
		}
		levels = append(levels, next)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	limits := o.SampleLimits(g)
	part, err := initial(ctx, levels[len(levels)-1], o, limits, random)
	if err != nil {
		return nil, err
	}
	for i := len(levels) - 1; i >= 0; i-- {
		if i < len(levels)-1 {
			part = levels[i+1].project(part)
		}
		// The relaxed limits hold during refinement. Only the finest level has vertices small
		// enough to meet the exact ones.
		r := newRefinement(levels[i], o, part, relax(levels[i], limits))
		if err := r.makePasses(ctx); err != nil {
			return nil, err
		}
		if i == 0 {
			if err := r.balance(ctx, limits); err != nil {
				return nil, err
			}
		}
		part = r.part
		if o.Progress != nil {
			o.Progress(0.9 * float64(len(levels)-i) / float64(len(levels)))
		}
	}
	return finish(ctx, g, o, finest, part)
}

// relax returns the limits that hold while vertices move: with full machines and no room at all
// nothing could move. There is room for at least the heaviest vertex.
func relax(l *level, limits []int64) []int64 {
	relaxed := make([]int64, len(limits))
	for i, limit := range limits {
		relaxed[i] = limit + max(l.heaviest(), int64(slack*float64(limit)))
	}
	return relaxed
}

// finish converts the partition of the finest level to an assignment, tries Alg. 2 for the
// parameters, and checks the result.
func finish(ctx context.Context, g *graph.Graph, o partition.Options, l *level, part []int32) (*partition.Assignment, error) {
	a := &partition.Assignment{Samples: part[:g.Samples()], Params: part[g.Samples():]}
	// The refinement has minimized the sum. Alg. 2 goes for the maximum, which is what counts in
	// the end.
	placed, err := twostep.PlaceParams(ctx, g, o, a.Samples)
	if err != nil {
		return nil, err
	}
	if b := (&partition.Assignment{Samples: a.Samples, Params: placed}); busiest(g, b, o) < busiest(g, a, o) {
		a = b
	}
	if err := partition.Check(g, a, o); err != nil {
		return nil, fmt.Errorf("multilevel partition: found none that satisfies the options (%w); loosen them, or use the algorithm best", err)
	}
	return a, nil
}

// busiest returns the load of the busiest machine.
func busiest(g *graph.Graph, a *partition.Assignment, o partition.Options) (most float64) {
	for _, load := range partition.Loads(g, a, o) {
		most = max(most, load)
	}
	return most
}

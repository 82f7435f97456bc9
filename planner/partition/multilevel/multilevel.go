// Package multilevel holds MBP, the multilevel bipartite partition of DWW21
// section 5: samples and parameters are merged pairwise until few are left,
// those are divided, and while the merging is undone step by step, samples and
// parameters move to where they save the most. The table of algorithms names
// it; a graph and options come in, an assignment goes out.
//
// Within, a graph is a hypergraph: a parameter is a net whose pins are the
// samples that use it and the parameter itself, as a vertex that can be placed.
// Then w (lambda - 1), summed over the nets, is what moves: lambda machines
// have a pin of the net, and all but the one with the parameter transfer it.
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
	verticesPerMachine = 20 // samples, where coarsening stops
	starts             = 8  // initial partitions tried
	slack              = 0.03
)

// MBP is DWW21's multilevel bipartite partition. Its last step places the
// parameters once more, for the busiest machine rather than for the sum, by
// Alg. 2, if that serves better.
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

// relax adds to the limits what a machine may hold above them while vertices
// move: without any room, nothing could.
func relax(l *level, limits []int64) []int64 {
	relaxed := make([]int64, len(limits))
	for i, limit := range limits {
		relaxed[i] = limit + max(l.heaviest(), int64(slack*float64(limit)))
	}
	return relaxed
}

// finish reads the assignment off the finest level.
func finish(ctx context.Context, g *graph.Graph, o partition.Options, l *level, part []int32) (*partition.Assignment, error) {
	a := &partition.Assignment{Samples: part[:g.Samples()], Params: make([]int32, g.Params())}
	for p := range a.Params {
		a.Params[p] = part[l.home[p]]
	}
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

func busiest(g *graph.Graph, a *partition.Assignment, o partition.Options) (most float64) {
	for _, load := range partition.Loads(g, a, o) {
		most = max(most, load)
	}
	return most
}

package graph

import (
	"context"
	"runtime"
	"slices"
	"sort"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// sortRows sorts each sample's parameters, in parallel, and drops duplicates. The second pass,
// which moves everything, runs only if there are any.
func (g *Graph) sortRows(ctx context.Context) error {
	var repeated atomic.Bool
	n := g.Samples()
	err := inRanges(ctx, n, func(from, to int) {
		for s := from; s < to; s++ {
			own := g.ParamsOf(s)
			if !slices.IsSorted(own) {
				slices.Sort(own)
			}
			if duplicate(own) >= 0 {
				repeated.Store(true)
			}
		}
	})
	if err != nil || !repeated.Load() {
		return err
	}
	kept := int64(0)
	for s := range n {
		own := slices.Compact(g.ParamsOf(s))
		g.sampleStart[s] = kept
		kept += int64(copy(g.sampleParams[kept:], own))
	}
	g.sampleStart[n] = kept
	g.sampleParams = g.sampleParams[:kept]
	return nil
}

// transposeParallel fills paramStart and paramSamples from the samples' lists. Each goroutine reads
// all edges and writes those of its own parameters. That is more reading, but it is sequential, and
// no goroutine ever waits for another.
func (g *Graph) transposeParallel(ctx context.Context) error {
	m := len(g.features)
	// While filling, paramStart[p+1] is where the next sample of p goes.
	g.paramStart = MakeHuge[int64](m + 2)
	// The table is shifted by one while it is filled, so that no copy of it is needed: in the end
	// next[p] has advanced to the start of p+1.
	next := g.paramStart[1:]
	err := inRanges(ctx, m, func(from, to int) {
		for _, p := range g.sampleParams {
			if from <= int(p) && int(p) < to {
				next[p+1]++
			}
		}
	})
	if err != nil {
		return err
	}
	for p := range m {
		next[p+1] += next[p]
	}
	g.paramSamples = MakeHuge[uint32](len(g.sampleParams))
	// Ranges of about the same number of edges.
	cores := runtime.GOMAXPROCS(0)
	// Popular parameters have many edges, so equal numbers of parameters would be unequal work.
	bounds := make([]int, cores+1)
	for i := range cores {
		share := int64(i) * int64(len(g.sampleParams)) / int64(cores)
		bounds[i] = sort.Search(m, func(p int) bool { return next[p] >= share })
	}
	bounds[cores] = m
	group, ctx := errgroup.WithContext(ctx)
	for i := range cores {
		group.Go(func() error {
			g.fill(next, uint32(bounds[i]), uint32(bounds[i+1]))
			return ctx.Err()
		})
	}
	err = group.Wait()
	g.paramStart = g.paramStart[:m+1]
	return err
}

// fill writes the samples of parameters from to to-1. next[p] is where the next sample of p goes;
// in the end it is where those of p end, which is where those of p+1 start.
func (g *Graph) fill(next []int64, from, to uint32) {
	for s := range g.Samples() {
		for _, p := range g.ParamsOf(s) {
			if from <= p && p < to {
				g.paramSamples[next[p]] = uint32(s)
				next[p]++
			}
		}
	}
}

// inRanges divides 0..n-1 into one range per core and calls work for each on a goroutine. work is
// not interrupted when ctx ends.
func inRanges(ctx context.Context, n int, work func(from, to int)) error {
	cores := runtime.GOMAXPROCS(0)
	group, ctx := errgroup.WithContext(ctx)
	for i := range cores {
		group.Go(func() error {
			work(i*n/cores, (i+1)*n/cores)
			return ctx.Err()
		})
	}
	return group.Wait()
}

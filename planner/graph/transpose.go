package graph

import (
	"context"
	"runtime"
	"slices"
	"sort"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// sortRows brings each sample's parameters into ascending order and drops
// those that stand twice.
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

// transposeParallel fills paramStart and paramSamples from the samples' lists.
// Each goroutine reads all edges and writes those of its own parameters, so
// that none waits for another.
func (g *Graph) transposeParallel(ctx context.Context) error {
	m := len(g.features)
	// While filling, paramStart[p+1] is where the next sample of p goes.
	g.paramStart = MakeHuge[int64](m + 2)
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

// fill writes the samples of the parameters from..to-1.
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

// inRanges calls work with as many equal ranges of 0..n-1 as there are cores,
// each on a goroutine.
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

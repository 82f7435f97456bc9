package multilevel

import (
	"context"
	"math/rand/v2"

	"github.com/psidecar/psidecar/planner/partition"
)

// initial divides the coarsest level at random, as DWW21 section 5 does, refines that, and returns
// the best of several starts. The level is small, so starts are cheap, and a random start differs
// enough from the next one to be worth it.
func initial(ctx context.Context, l *level, o partition.Options, limits []int64, random *rand.Rand) ([]int32, error) {
	var best []int32
	var least int64
	for range starts {
		r := newRefinement(l, o, randomPart(l, limits, random), relax(l, limits))
		if err := r.makePasses(ctx); err != nil {
			return nil, err
		}
		if cost := r.cost(); best == nil || cost < least {
			best, least = r.part, cost
		}
	}
	return best, nil
}

// randomPart gives each sample, in random order, to the machine that is emptiest relative to its
// limit, and each parameter to the machine of one of its samples, where at least that sample's use
// is local. Fixed vertices go where they must be.
func randomPart(l *level, limits []int64, random *rand.Rand) []int32 {
	part := make([]int32, l.vertices())
	load := make([]int64, len(limits))
	for v, i := range l.fixed {
		part[v] = i
		if i >= 0 {
			load[i] += l.weight[v]
		}
	}
	for _, s := range random.Perm(l.samples) {
		if part[s] >= 0 {
			continue
		}
		to := 0
		for i := range limits {
			if float64(load[i])*float64(limits[to]) < float64(load[to])*float64(limits[i]) {
				to = i
			}
		}
		part[s] = int32(to)
		load[to] += l.weight[s]
	}
	for v := int32(l.samples); int(v) < l.vertices(); v++ {
		if part[v] >= 0 {
			continue
		}
		part[v] = int32(random.IntN(len(limits)))
		if nets := l.netsOf(v); len(nets) > 0 {
			if s := l.samplesOf(nets[random.IntN(len(nets))]); len(s) > 0 {
				part[v] = part[s[random.IntN(len(s))]]
			}
		}
	}
	return part
}

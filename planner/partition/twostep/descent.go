package twostep

import (
	"math"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// A descent is a branch-and-bound search for a set of up to size samples.
type descent struct {
	g    *graph.Graph
	m    *machine
	size int
	beta float64
	room int64
	// Candidates, ascending.
	chosen []int32
	best   []int32
	// The cost of best.
	cost int64
	// The value of best, or of a set that is known to exist.
	value float64
	found bool
}

// larger is find for any size.
func (f *finder) larger(g *graph.Graph, m *machine, size int, beta float64, room int64) subset {
	if len(f.times) < g.Params() {
		f.times = make([]int32, g.Params())
	}
	f.deep = descent{g: g, m: m, size: size, beta: beta, room: room,
		chosen: f.deep.chosen[:0], best: f.deep.best[:0], value: math.Inf(1)}
	f.greedy()
	f.descend(0, 0)
	set := make([]uint32, 0, len(f.deep.best))
	for _, i := range f.deep.best {
		set = append(set, f.candidate[i].sample)
	}
	slices.Sort(set)
	return subset{set: set, cost: f.deep.cost}
}

// greedy bounds the value from above by that of the set in which each sample is the best addition
// to those before. A good bound at the start prunes most of the tree.
func (f *finder) greedy() {
	d := &f.deep
	var cost int64
	for len(d.chosen) < min(d.size, len(f.candidate)) {
		best, least := int32(-1), int64(math.MaxInt64)
		for i := range f.candidate {
			if slices.Contains(d.chosen, int32(i)) {
				continue
			}
			if c := f.addition(int32(i)); c < least {
				best, least = int32(i), c
			}
		}
		if cost += least; cost > d.room {
			break
		}
		f.choose(best)
		d.value = min(d.value, float64(cost)-d.beta*float64(len(d.chosen)))
	}
	for len(d.chosen) > 0 {
		f.unchoose()
	}
}

// descend tries all candidates from number from on as the next of the chosen ones, whose cost is
// cost. Candidates ascend by cost, so the first one that is too dear alone ends the loop.
func (f *finder) descend(from int, cost int64) {
	d := &f.deep
	for i := from; i < len(f.candidate); i++ {
		// All that contains this candidate or a later one costs at least this.
		if atLeast := max(cost, f.candidate[i].cost); atLeast > d.room || float64(atLeast)-d.beta*float64(d.size) > d.value {
			return
		}
		total := cost + f.addition(int32(i))
		if total > d.room || float64(total)-d.beta*float64(d.size) > d.value {
			continue
		}
		f.choose(int32(i))
		value := float64(total) - d.beta*float64(len(d.chosen))
		if value < d.value || value == d.value && (!d.found || len(d.chosen) > len(d.best)) {
			d.best, d.cost, d.value, d.found = append(d.best[:0], d.chosen...), total, value, true
		}
		if len(d.chosen) < d.size {
			f.descend(i+1, total)
		}
		f.unchoose()
	}
}

// addition returns what candidate i costs in addition to the chosen ones.
func (f *finder) addition(i int32) (cost int64) {
	f.fresh = f.deep.m.params(f.fresh[:0], f.deep.g, f.candidate[i].sample, f.candidate[i].cost)
	for _, p := range f.fresh {
		if f.times[p] == 0 {
			cost += int64(f.deep.g.ParamWeight(int(p)))
		}
	}
	return cost
}

// choose adds a candidate to the chosen ones and counts its parameters; those with a count cost no
// further candidate anything.
func (f *finder) choose(i int32) {
	f.deep.chosen = append(f.deep.chosen, i)
	for _, p := range f.deep.g.ParamsOf(int(f.candidate[i].sample)) {
		f.times[p]++
	}
}

// unchoose removes the last chosen candidate. After the search all counts are 0 again.
func (f *finder) unchoose() {
	last := len(f.deep.chosen) - 1
	for _, p := range f.deep.g.ParamsOf(int(f.candidate[f.deep.chosen[last]].sample)) {
		f.times[p]--
	}
	f.deep.chosen = f.deep.chosen[:last]
}

package twostep

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A literal is DWW21 Alg. 1 or DW23 Alg. 1 as printed, with sets as maps.
type literal struct {
	g       *graph.Graph
	o       partition.Options
	r       Rules
	sets    []map[uint32]bool // D_i
	free    map[uint32]bool   // D'
	closed  []bool
	sampler *sampler
}

// literalDivide returns nil where the memory bound leaves a sample over, or
// where DW23's line 7 refuses a thousand times.
func literalDivide(g *graph.Graph, o partition.Options, r Rules) []int32 {
	l := &literal{g: g, o: o, r: r, free: map[uint32]bool{}, closed: make([]bool, o.K)}
	for range o.K {
		l.sets = append(l.sets, map[uint32]bool{})
	}
	if r.Sample > 0 {
		l.sampler = newSampler(g.Samples(), rand.New(rand.NewPCG(o.Seed, 0x7d1a)))
	}
	for s := range uint32(g.Samples()) {
		l.free[s] = true
	}
	for s, i := range o.FixedSamples {
		if i >= 0 {
			l.give(int(i), []uint32{uint32(s)})
		}
	}
	if o.Theta == 0 {
		l.o.Theta = math.MaxInt64
	}
	for i := range l.sets {
		if l.f(i) > l.o.Theta {
			return nil
		}
	}
	if r.Beta == 0 {
		l.r.Beta = 1
		for p := range g.Params() {
			l.r.Beta += float64(g.ParamWeight(p))
		}
	}
	rejected := 0
	for len(l.free) > 0 {
		i := l.smallest()
		if i < 0 {
			return nil
		}
		set := l.search(i)
		switch {
		case set == nil:
			if !l.anyFits(i) {
				l.closed[i] = true
			}
			continue
		case l.r.dppa && float64(l.f(i, set...))-l.r.Beta*float64(len(l.sets[i])+len(set)) >= 0:
			if rejected++; rejected > 1000 {
				return nil
			}
			continue
		case len(set) > 1 && l.load(i, set...) > l.o.SampleLimits(g)[i]:
			set = []uint32{slices.MinFunc(set, l.cheaper(i))}
		}
		l.give(i, set)
		rejected = 0
	}
	assigned := make([]int32, g.Samples())
	for i, set := range l.sets {
		for s := range set {
			assigned[s] = int32(i)
		}
	}
	return assigned
}

func (l *literal) give(i int, set []uint32) {
	slices.Sort(set) // the sampler sees the same order
	for _, s := range set {
		l.sets[i][s] = true
		delete(l.free, s)
		if l.sampler != nil {
			l.sampler.removeSample(s)
		}
	}
}

// f is f(D_i + S).
func (l *literal) f(i int, set ...uint32) (sum int64) {
	neighbours := map[uint32]bool{}
	for s := range l.sets[i] {
		for _, p := range l.g.ParamsOf(int(s)) {
			neighbours[p] = true
		}
	}
	for _, s := range set {
		for _, p := range l.g.ParamsOf(int(s)) {
			neighbours[p] = true
		}
	}
	for p := range neighbours {
		sum += int64(l.g.ParamWeight(int(p)))
	}
	return sum
}

func (l *literal) load(i int, set ...uint32) (sum int64) {
	for s := range l.sets[i] {
		sum += int64(l.g.SampleWeight(int(s)))
	}
	for _, s := range set {
		sum += int64(l.g.SampleWeight(int(s)))
	}
	return sum
}

func (l *literal) smallest() int {
	best := -1
	for i := range l.sets {
		if l.closed[i] || l.load(i) >= l.o.SampleLimits(l.g)[i] {
			continue
		}
		if best < 0 || float64(l.load(i))/shareOf(l.o, i) < float64(l.load(best))/shareOf(l.o, best) {
			best = i
		}
	}
	return best
}

func (l *literal) cheaper(i int) func(a, b uint32) int {
	return func(a, b uint32) int { return cmp.Or(cmp.Compare(l.f(i, a), l.f(i, b)), cmp.Compare(a, b)) }
}

func (l *literal) anyFits(i int) bool {
	for s := range l.free {
		if l.f(i, s) <= l.o.Theta {
			return true
		}
	}
	return false
}

// search is line 5: all subsets of the sample, cheapest samples first.
func (l *literal) search(i int) (best []uint32) {
	var from []uint32
	for len(from) == 0 {
		if l.sampler == nil {
			for s := range l.free {
				from = append(from, s)
			}
		} else if from = slices.Clone(l.sampler.draw(l.r.Sample)); l.r.dppa && len(from) > 2*l.r.Sample {
			from = nil
		}
	}
	slices.SortFunc(from, l.cheaper(i))
	value := math.Inf(1)
	var try func(set []uint32, rest []uint32)
	try = func(set, rest []uint32) {
		if len(set) > 0 && l.f(i, set...) <= l.o.Theta {
			v := float64(l.f(i, set...)-l.f(i)) - l.r.Beta*float64(len(set))
			if v < value || v == value && len(set) > len(best) {
				value, best = v, slices.Clone(set)
			}
		}
		if len(set) < l.r.Alpha {
			for at, s := range rest {
				try(append(slices.Clone(set), s), rest[at+1:])
			}
		}
	}
	try(nil, from)
	return best
}

// literalPlace is Alg. 2 as printed, with costs recomputed from their
// definition |N(D_i) - P_i| + sum over j of |P_i and N(D_j)|.
func literalPlace(g *graph.Graph, o partition.Options, samples []int32) []int32 {
	owner := make([]int32, g.Params())
	for p := range owner {
		owner[p] = -1
	}
	uses := func(i, p int) bool {
		return slices.ContainsFunc(g.SamplesOf(p), func(s uint32) bool { return samples[s] == int32(i) })
	}
	cost := func(i int) (sum int64) {
		for p := range owner {
			for j := range o.K {
				if uses(j, p) && (j == i) != (owner[p] == int32(i)) {
					sum += int64(g.ParamWeight(p))
				}
			}
		}
		return sum
	}
	speed := func(i int) float64 {
		if o.Speed == nil {
			return 1
		}
		return o.Speed[i]
	}
	for {
		best := -1 // the machine
		var bestParam int
		for i := range o.K {
			param, least := -1, int64(0)
			for p := range owner {
				if owner[p] >= 0 || !uses(i, p) {
					continue
				}
				before := cost(i)
				owner[p] = int32(i)
				if change := cost(i) - before; param < 0 || change < least {
					param, least = p, change
				}
				owner[p] = -1
			}
			if param >= 0 && (best < 0 || float64(cost(i))/speed(i) < float64(cost(best))/speed(best)) {
				best, bestParam = i, param
			}
		}
		if best < 0 {
			return owner
		}
		owner[bestParam] = int32(best)
	}
}

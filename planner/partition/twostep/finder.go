package twostep

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// A finder searches for the set of line 5 of Alg. 1 if it may have more than one sample: the one
// with the least value f(D_i + S) - f(D_i) - beta |S|, since the rest of the paper's expression is
// the same for all S. Among equal values a larger set comes first, then the one whose samples, in
// order of cost and then number, come first.
//
// The exact search is fast because costs only overlap: a set costs at least as much as its dearest
// sample alone, so the sum of the few least costs rules out almost all samples. A finder is for one
// goroutine; it keeps its memory from search to search.
type finder struct {
	list []uint32
	// By sample at hand.
	cost []int64
	// Ascending by cost, then number.
	candidate []candidate
	fresh     []uint32 // parameters of one sample that the machine has not covered

	// Pairs.
	head    []int32 // parameter -> its last entry in chain, or -1; all -1 between searches
	chain   []link
	marked  []uint32 // parameters with an entry
	shared  []int64  // candidate -> weight that it shares with the one in hand
	sharing []int32  // candidates with a share

	// Larger subsets.
	times []int32 // parameter -> how many of the chosen use it; all 0 between searches
	deep  descent
}

// A candidate is a sample and what it alone costs the machine.
type candidate struct {
	sample uint32
	cost   int64
}

// A link records that a candidate has a parameter, in the list of the parameter.
type link struct {
	candidate, next int32
}

// all returns the unassigned samples, ascending.
func (f *finder) all(free []uint64) []uint32 {
	f.list = f.list[:0]
	for b, word := range free {
		for ; word != 0; word &= word - 1 {
			f.list = append(f.list, uint32(b*64+bits.TrailingZeros64(word)))
		}
	}
	return f.list
}

// costsOf sets f.cost to what each of samples costs m.
func (f *finder) costsOf(m *machine, samples []uint32) {
	f.cost = slices.Grow(f.cost[:0], len(samples))[:len(samples)]
	m.costs.of(f.cost, samples)
}

// cheapest returns the sample with the least cost, the first among equals.
func (f *finder) cheapest(m *machine, samples []uint32) uint32 {
	return f.leastOf(m, samples, math.MaxInt64).set[0]
}

// leastOf returns the sample with the least cost, the first among equals, or an empty set if that
// cost is above room.
func (f *finder) leastOf(m *machine, samples []uint32, room int64) subset {
	f.costsOf(m, samples)
	best := candidate{cost: math.MaxInt64}
	for i, s := range samples {
		if c := f.cost[i]; c < best.cost || c == best.cost && s < best.sample {
			best = candidate{s, c}
		}
	}
	if best.cost > room {
		return subset{}
	}
	return best.alone()
}

// find returns the best set of at most size (at least 2) of the given samples whose cost is at most
// room; an empty set if there is none.
func (f *finder) find(g *graph.Graph, m *machine, samples []uint32, size int, beta float64, room int64) subset {
	limit := f.limit(m, samples, size, room)
	f.candidate = f.candidate[:0]
	for i, s := range samples {
		if c := f.cost[i]; c <= limit {
			f.candidate = append(f.candidate, candidate{s, c})
		}
	}
	slices.SortFunc(f.candidate, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.sample, b.sample))
	})
	switch {
	case len(f.candidate) == 0:
		return subset{}
	case len(f.candidate) == 1:
		return f.candidate[0].alone()
	case size == 2:
		return f.pair(g, m, beta, room)
	}
	return f.larger(g, m, size, beta, room)
}

func (c candidate) alone() subset { return subset{set: []uint32{c.sample}, cost: c.cost} }

// limit returns a cost that no sample of the best set exceeds. The size least costs make a set that
// costs at most their sum; a smaller but dearer one would not be better. If that sum exceeds room,
// or there are too few samples, room is the limit.
func (f *finder) limit(m *machine, samples []uint32, size int, room int64) int64 {
	least := make([]int64, 0, size+1)
	f.costsOf(m, samples)
	for _, c := range f.cost {
		if len(least) == size && c >= least[size-1] {
			continue
		}
		at, _ := slices.BinarySearch(least, c)
		least = slices.Insert(least, at, c)
		least = least[:min(len(least), size)]
	}
	var sum int64
	for _, c := range least {
		sum += c
	}
	if len(least) < size || sum > room {
		return room
	}
	return sum
}

// pair returns the best pair, or the best sample alone if that is better. Candidates come cheapest
// first and are compared with the earlier ones with which they share a parameter; any other pair is
// no better than the two cheapest.
func (f *finder) pair(g *graph.Graph, m *machine, beta float64, room int64) subset {
	a, b := f.candidate[0], f.candidate[1]
	first, second, least := int32(0), int32(1), a.cost+b.cost
	if least > room {
		first, second, least = -1, -1, room+1
	}
	if a.cost > 0 { // else nothing is cheaper than b, or comes before a
		f.start(g, len(f.candidate))
		for i, c := range f.candidate {
			if c.cost > least {
				break
			}
			for _, j := range f.compare(g, m, int32(i)) {
				cost := f.candidate[j].cost + c.cost - f.shared[j]
				f.shared[j] = 0
				if cost < least || cost == least && first >= 0 && (j < first || j == first && int32(i) < second) {
					first, second, least = j, int32(i), cost
				}
			}
		}
		f.reset()
	}
	if first < 0 || float64(least)-2*beta > float64(a.cost)-beta {
		return a.alone()
	}
	set := []uint32{f.candidate[first].sample, f.candidate[second].sample}
	slices.Sort(set)
	return subset{set: set, cost: least}
}

// start makes the tables large enough for a search of pairs.
func (f *finder) start(g *graph.Graph, candidates int) {
	if len(f.head) < g.Params() {
		f.head = make([]int32, g.Params())
		for p := range f.head {
			f.head[p] = -1
		}
	}
	if len(f.shared) < candidates {
		f.shared = make([]int64, candidates)
	}
}

// compare returns the earlier candidates that share parameters with candidate i, with the shared
// weight in f.shared, and enters i's parameters in the lists.
func (f *finder) compare(g *graph.Graph, m *machine, i int32) []int32 {
	f.sharing = f.sharing[:0]
	f.fresh = m.params(f.fresh[:0], g, f.candidate[i].sample, f.candidate[i].cost)
	for _, p := range f.fresh {
		w := int64(g.ParamWeight(int(p)))
		for at := f.head[p]; at >= 0; at = f.chain[at].next {
			j := f.chain[at].candidate
			if f.shared[j] == 0 {
				f.sharing = append(f.sharing, j)
			}
			f.shared[j] += w
		}
		if f.head[p] < 0 {
			f.marked = append(f.marked, p)
		}
		f.chain = append(f.chain, link{i, f.head[p]})
		f.head[p] = int32(len(f.chain) - 1)
	}
	return f.sharing
}

// reset empties the lists, in time proportional to what was entered.
func (f *finder) reset() {
	for _, p := range f.marked {
		f.head[p] = -1
	}
	f.marked, f.chain = f.marked[:0], f.chain[:0]
}

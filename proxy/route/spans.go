package route

import (
	"math"
	"slices"
	"sort"

	"github.com/psidecar/psidecar/internal/plan"
)

// mostSpans bounds the ranges of keys of a use.
const mostSpans = 4096

// covers reports whether all keys of a range are in ascending ranges.
func covers(all []plan.Keys, k plan.Keys) bool {
	i := sort.Search(len(all), func(i int) bool { return all[i].Last >= k.First })
	return i < len(all) && all[i].First <= k.First && all[i].Last >= k.Last
}

// within returns the parts of ascending ranges that lie in another one.
func within(all []plan.Keys, k plan.Keys) (parts []plan.Keys) {
	i := sort.Search(len(all), func(i int) bool { return all[i].Last >= k.First })
	for ; i < len(all) && all[i].First <= k.Last; i++ {
		parts = append(parts, plan.Keys{First: max(all[i].First, k.First), Last: min(all[i].Last, k.Last)})
	}
	return parts
}

// cover adds a range to ascending, disjoint ones, which it changes. Beyond mostSpans it joins neighbours: keys between
// them count as used from then on. That may keep keys from moving, and never has one asked for in the wrong way.
func cover(all []plan.Keys, k plan.Keys) []plan.Keys {
	before := k.First - min(k.First, 1) // a neighbour is joined
	behind := k.Last + min(math.MaxUint64-k.Last, 1)
	i := sort.Search(len(all), func(i int) bool { return all[i].Last >= before })
	j := i
	for ; j < len(all) && all[j].First <= behind; j++ {
		k.First, k.Last = min(k.First, all[j].First), max(k.Last, all[j].Last)
	}
	if j == i+1 && all[i] == k {
		return all
	}
	all = slices.Replace(all, i, j, k)
	if len(all) <= mostSpans {
		return all
	}
	half := all[:0]
	for i := 0; i < len(all); i += 2 {
		half = append(half, plan.Keys{First: all[i].First, Last: all[min(i+1, len(all)-1)].Last})
	}
	return half
}

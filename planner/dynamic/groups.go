package dynamic

import (
	"cmp"
	"slices"
)

// bestGroups returns the pairs of machines between which items should move that are used
// most, as many as a plan may have, by where the items would go if each were the only
// one; nil where they are no more than that.
func (l *Locality) bestGroups(it *Items, most int) map[[2]int32]bool {
	if most == 0 {
		return nil
	}
	used := map[[2]int32]float64{}
	for _, item := range l.order {
		if l.handed(item) {
			continue
		}
		if to, ok := l.target(it, item); ok {
			group := [2]int32{l.owner[item], to}
			for _, u := range l.rates.of(item) {
				used[group] += float64(u.rate)
			}
		}
	}
	if len(used) <= most {
		return nil
	}
	var groups [][2]int32
	for g := range used {
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b [2]int32) int {
		return cmp.Or(cmp.Compare(used[b], used[a]), cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	best := map[[2]int32]bool{}
	for _, g := range groups[:most] {
		best[g] = true
	}
	return best
}

package page

import (
	"cmp"
	"slices"
)

// SumRange is neighbouring keys of which a host's pushes are worth summing.
type SumRange struct{ First, Last uint64 }

// Sums returns of which ranges sums of each host would have the busiest machine move
// fewer bytes than servers do as they are, by a twentieth at least: those of keys that are
// neighbours as one. All says that it is so of all ranges, so that keys that are new are
// to be expected to be alike.
func (a *Alpha) Sums(most int) (ranges []SumRange, all bool) {
	type saving struct {
		SumRange
		bytes float64
	}
	var found []saving
	all, joins := len(a.Ranges) > 0, false
	for i := range a.Ranges {
		r := &a.Ranges[i]
		singly, summed := r.Forms[FormServers.String()], r.Forms[FormHostSums.String()]
		if summed >= leastSaved*singly {
			all, joins = false, false
			continue
		}
		next := saving{SumRange{uint64(r.First), uint64(r.Last)}, singly - summed}
		if joins {
			last := &found[len(found)-1]
			last.Last, last.bytes = next.Last, last.bytes+next.bytes
		} else {
			found = append(found, next)
		}
		joins = true
	}
	slices.SortStableFunc(found, func(a, b saving) int { return cmp.Compare(b.bytes, a.bytes) })
	found = found[:min(len(found), most)]
	slices.SortFunc(found, func(a, b saving) int { return cmp.Compare(a.First, b.First) })
	for _, s := range found {
		ranges = append(ranges, s.SumRange)
	}
	return ranges, all
}

// leastSaved is what a range's bytes may be at most with sums, beside without.
const leastSaved = 0.95

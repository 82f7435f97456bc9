package twostep

import (
	"cmp"
	"slices"
)

// queues are the supply if groups of parameters stay together. Each machine has an order of its
// own, since what a group adds to it depends on how much of the group it uses. A unit is in the
// queue of each machine that uses it; next skips units that others have taken.
type queues struct {
	placement *placement
	// By machine, the units that it uses, best first.
	units [][]uint32
}

// newQueues sorts the units of each machine, in parallel.
func newQueues(p *placement) *queues {
	q := &queues{placement: p, units: make([][]uint32, p.k)}
	crew := newCrew(p.k)
	defer crew.stop()
	crew.each(func(_, i int) { q.units[i] = p.unitsOf(i) })
	return q
}

// unitsOf returns the units in P' that machine i uses, those that add least first, equal ones by
// number.
func (p *placement) unitsOf(i int) []uint32 {
	type entry struct {
		change int64
		unit   uint32
	}
	var entries []entry
	seen := map[int32]bool{}
	for param := range p.owner {
		if unit := p.unitOf[param]; p.owner[param] < 0 && p.users.usedBy(param, i) && !seen[unit] {
			seen[unit] = true
			e := entry{unit: uint32(unit)}
			for _, member := range p.members[unit] {
				e.change += p.change(i, int(member))
			}
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.change, b.change), cmp.Compare(a.unit, b.unit))
	})
	units := make([]uint32, len(entries))
	for at, e := range entries {
		units[at] = e.unit
	}
	return units
}

// next implements supply.
func (q *queues) next(i int) (uint32, bool) {
	for len(q.units[i]) > 0 {
		unit := q.units[i][0]
		q.units[i] = q.units[i][1:]
		if q.placement.owner[q.placement.members[unit][0]] < 0 {
			return unit, true
		}
	}
	return 0, false
}

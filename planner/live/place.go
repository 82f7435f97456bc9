package live

import (
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/plans"
)

// placed remembers for which state of the owners items were placed, so that the next decision
// applies only the changes since.
type placed struct {
	version, mark uint64 // of the owners
	// The number of items, from the first, that are placed.
	items int
	// The machine of each server at that time.
	machines []int32
}

// place sets the owner and home of items from the owners in v. New items are looked up; of the
// others only those of changed keys are, unless the changes are unknown, too many, or servers have
// moved to other machines.
func (j *job) place(v plans.Where) {
	machines := make([]int32, len(j.serves))
	for rank, host := range j.serves {
		machines[rank] = int32(j.machine[host])
	}
	from := j.placed.items
	changes, ok := v.Since(j.placed.version, j.placed.mark)
	ok = ok && slices.Equal(machines, j.placed.machines) && keysOf(changes) <= uint64(len(j.keys))
	if !ok {
		from, changes = 0, nil
	}
	for i, key := range j.keys[from:] {
		j.placeItem(from+i, v.Owners.Owner(key), machines)
	}
	for _, r := range changes {
		for key := r.First; ; key++ {
			if n, ok := j.number[key]; ok {
				j.placeItem(int(n), r.Owner, machines)
			}
			if key == r.Last {
				break
			}
		}
	}
	j.placed = placed{v.Version, v.Mark, len(j.keys), machines}
}

// placeItem sets an item's machines. Keys in parts count as being at home; plans do not move them.
func (j *job) placeItem(item int, owner int32, machines []int32) {
	if owner == plan.Home || plan.PartsOf(owner) > 0 { // values in parts are not moved: see plans
		owner = j.homes[item]
	}
	j.items.Home[item], j.items.Owner[item] = machines[j.homes[item]], machines[owner]
}

// keysOf returns the number of keys in the ranges, saturating: a change may be a range of the whole
// key space.
func keysOf(ranges []plan.Range) (n uint64) {
	for _, r := range ranges {
		if k := r.Last - r.First + 1; k == 0 || n+k < n {
			return 1<<64 - 1
		} else {
			n += k
		}
	}
	return n
}

package partition

import (
	"cmp"
	"context"
	"slices"
)

// flattenRounds bounds the rounds of flatten; it normally ends long before.
const flattenRounds = 1000

// lendTolerance is how far above the mean a machine may stay before parameters go to machines that
// do not use them.
const lendTolerance = 0.002

// flatten moves items away from the busiest machine, to less busy users of them and, with lend, to
// any machine, until nothing helps any more.
func (pl *placing) flatten(ctx context.Context, lend bool) error {
	// By machine, the items that cost it something to own and may move.
	owned := make([][]int32, len(pl.load))
	for i, at := range pl.owner {
		// Owning an item costs nothing extra to a machine that has at least half of its uses.
		if pl.items[i].extra(at) > 0 {
			owned[at] = append(owned[at], int32(i))
		}
	}
	for range flattenRounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Only the busiest machine matters: its load is the objective.
		if b := pl.busiest(); !pl.relieve(b, owned) && !(lend && pl.lend(b, owned)) {
			return nil
		}
	}
	return nil
}

func (pl *placing) busiest() int32 {
	at := int32(0)
	for i := range pl.load {
		if pl.ratio(int32(i), 0) > pl.ratio(at, 0) {
			at = int32(i)
		}
	}
	return at
}

// mean returns the relative load that all machines would have if load could be divided freely. It
// changes when an item goes to a machine that does not use it.
func (pl *placing) mean() float64 {
	var load, speed float64
	for i := range pl.load {
		load += float64(pl.load[i])
		speed += pl.speed[i]
	}
	return load / speed
}

// relieve moves items from machine b to users of them that are less loaded even with the item,
// until b is at the mean. It reports whether it has moved any.
func (pl *placing) relieve(b int32, owned [][]int32) bool {
	moved := false
	mean := pl.mean()
	owned[b] = slices.DeleteFunc(owned[b], func(i int32) bool {
		if pl.ratio(b, 0) <= mean {
			return false
		}
		it := &pl.items[i]
		extra := it.extra(b)
		to, least := b, pl.ratio(b, 0)
		for _, u := range it.use {
			if r := pl.ratio(u.machine, it.all-2*u.weight); u.machine != b && r < least {
				to, least = u.machine, r
			}
		}
		if to == b {
			return false
		}
		pl.owner[i] = to
		pl.load[b] -= extra
		pl.load[to] += it.extra(to)
		owned[to] = append(owned[to], i)
		moved = true
		return true
	})
	return moved
}

// lend moves the items that cost most to own from machine b to the least loaded machine, although
// that does not use them, until b is near the mean. That adds an item's use to the total, which is
// small relative to what it relieves b of if nearly all machines use the item.
func (pl *placing) lend(b int32, owned [][]int32) bool {
	slices.SortFunc(owned[b], func(i, j int32) int {
		return cmp.Or(cmp.Compare(pl.items[j].extra(b), pl.items[i].extra(b)), cmp.Compare(i, j))
	})
	moved := false
	mean := pl.mean() * (1 + lendTolerance)
	owned[b] = slices.DeleteFunc(owned[b], func(i int32) bool {
		it := &pl.items[i]
		to := pl.idlest()
		extra := it.extra(b)
		if pl.ratio(b, 0) <= mean || pl.ratio(to, it.extra(to)) >= pl.ratio(b, 0) {
			return false
		}
		pl.owner[i] = to
		pl.load[b] -= extra
		pl.load[to] += it.extra(to)
		owned[to] = append(owned[to], i)
		moved = true
		return true
	})
	return moved
}

func (pl *placing) idlest() int32 {
	at := int32(0)
	for i := range pl.load {
		if pl.ratio(int32(i), 0) < pl.ratio(at, 0) {
			at = int32(i)
		}
	}
	return at
}

package live

import (
	"slices"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// A job may have a thousand times as many keys as are looked at one by one. Half of
// the room is for whatever comes; the rest for keys that come again. When nearly all
// is taken, those are forgotten that were not used for the longest and are at home.

// doorFrom is of how many items, at least, there must be room for that keys have to
// come again.
const doorFrom = 1 << 12

// A door knows the keys that came before, lately: a bit for each, by its hash, in two
// sets, of which the older one is emptied when the newer one has doorKeys.
type door struct {
	bits  [2][]uint64
	newer int
	count int // in the newer one
}

const (
	doorBits = 1 << 24
	doorKeys = doorBits / 8
)

// knows reports whether the key came before, or one that looks like it, as one in
// eight does at most in each set, and notes it.
func (d *door) knows(key uint64) bool {
	at := (key + 1) * 0x9e3779b97f4a7c15 >> 40 // 24 bits
	word, mask := at/64, uint64(1)<<(at%64)
	known := false
	for _, set := range d.bits {
		known = known || set != nil && set[word]&mask != 0
	}
	if known {
		return true
	}
	if d.bits[d.newer] == nil || d.count >= doorKeys {
		d.newer, d.count = 1-d.newer, 0
		d.bits[d.newer] = make([]uint64, doorBits/64)
	}
	d.bits[d.newer][word] |= mask
	d.count++
	return false
}

// makeRoom makes room for other keys where there is little left.
func (j *job) makeRoom() {
	if len(j.keys) < j.opts.MaxItems-j.opts.MaxItems/8 || len(j.keys) < doorFrom {
		return
	}
	// It keeps as many as half of the room: displaced keys first, then those used
	// last.
	const ages = 1 << 10
	age := func(i int) uint32 {
		if j.items.Owner[i] != j.items.Home[i] {
			return 0
		}
		return min(1+j.turn-j.used[i], ages-1)
	}
	var count [ages]int
	for i := range j.keys {
		count[age(i)]++
	}
	sum, oldest := 0, uint32(0)
	for ; oldest < ages && sum+count[oldest] <= j.opts.MaxItems/2; oldest++ {
		sum += count[oldest]
	}
	var kept []int32
	for i := range j.keys {
		if age(i) < max(oldest, 1) {
			kept = append(kept, int32(i))
		}
	}
	j.retainItems(kept)
}

// retainItems forgets all items but some, which ascend.
func (j *job) retainItems(kept []int32) {
	if l, ok := j.strategy.(*dynamic.Locality); ok {
		l.Keep(kept)
	} else {
		j.strategy = nil // it is made again
	}
	number := make([]int32, len(j.keys))
	for i := range number {
		number[i] = -1
	}
	j.number = make(map[uint64]int32, 2*len(kept))
	for to, from := range kept {
		number[from] = int32(to)
		j.keys[to], j.homes[to], j.used[to] = j.keys[from], j.homes[from], j.used[from]
		j.items.Home[to], j.items.Owner[to], j.items.Size[to] = j.items.Home[from], j.items.Owner[from], j.items.Size[from]
		j.number[j.keys[to]] = int32(to)
	}
	n := len(kept)
	j.keys, j.homes, j.used = j.keys[:n], j.homes[:n], j.used[:n]
	j.placed.items = n // all were
	j.items.Home, j.items.Owner, j.items.Size = j.items.Home[:n], j.items.Owner[:n], j.items.Size[:n]
	for _, w := range j.workers {
		w.seen.renumber(number)
		w.was.renumber(number)
		for _, list := range []*[]int32{&w.batch.Pulled, &w.batch.Updated} {
			for i, item := range *list {
				(*list)[i] = number[item]
			}
			*list = slices.DeleteFunc(*list, func(item int32) bool { return item < 0 })
		}
	}
}

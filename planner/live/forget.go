package live

import (
	"slices"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// A job may have a thousand times as many keys as are looked at one by one. Half of the room is for
// any key that comes; the rest is for keys that come again (door). When nearly all of it is taken,
// the keys are forgotten that have not been used for the longest and are at home (makeRoom).

// doorFrom is the smallest MaxItems with which keys have to come again.
const doorFrom = 1 << 12

// A door remembers keys that came lately: two sets of bits, indexed by a hash of the key. Keys are
// added to the newer set; when that has doorKeys, the older one is emptied and becomes the newer.
// So a key is remembered for between doorKeys and twice as many others. The sets take 2 MiB each
// and are allocated on first use.
type door struct {
	bits  [2][]uint64
	newer int
	// The number of keys in the newer set.
	count int
}

const (
	doorBits = 1 << 24
	doorKeys = doorBits / 8
)

// knows reports whether the key came before, and remembers it. At most one key in eight is mistaken
// for another in each set, which only costs a place.
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

// makeRoom forgets items if seven eighths of the room is taken, so that half of it remains in use.
// Displaced keys always stay: the planner has to know what it has moved.
func (j *job) makeRoom() {
	if len(j.keys) < j.opts.MaxItems-j.opts.MaxItems/8 || len(j.keys) < doorFrom {
		return
	}
	// Items by age, in decisions since their last use. Displaced keys have age 0.
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
	// Keep whole ages, the youngest first, while they fit in half of the room.
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

// retainItems forgets all items but those in kept, which ascend, and renumbers them from 0.
// Everything that has item numbers is renumbered with them.
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
		j.keys[to], j.homes[to], j.used[to], j.twice[to] = j.keys[from], j.homes[from], j.used[from], j.twice[from]
		j.items.Home[to], j.items.Owner[to], j.items.Size[to] = j.items.Home[from], j.items.Owner[from], j.items.Size[from]
		j.number[j.keys[to]] = int32(to)
	}
	n := len(kept)
	j.keys, j.homes, j.used, j.twice = j.keys[:n], j.homes[:n], j.used[:n], j.twice[:n]
	j.placed.items = n // all of them were placed
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

package counts

import (
	"container/heap"
	"math/bits"
	"slices"
)

// A HotKey is a key with its accesses by all workers.
type HotKey struct {
	Key     uint64
	Sums    Sums    // counted one by one
	Earlier uint64  // estimate of its accesses before it was promoted; see Count
	Workers []Count // by worker
}

// Accesses returns all accesses of the key, estimated ones included.
func (k *HotKey) Accesses() uint64 { return k.Sums.Accesses() + k.Earlier }

// A SkewPoint says that the Keys most used keys have Accesses together.
type SkewPoint struct {
	Keys     uint64
	Accesses uint64
}

// Hottest returns the n keys with the most accesses, hottest first, and the skew curve:
// cumulative accesses over the number of keys in descending heat; its last point has all keys
// and all accesses. Keys of folded blocks that are not counted one by one enter the curve with
// their block's mean.
//
// It visits every key but locks the table for a few leaves at a time, so that counting
// continues. The result is therefore not a snapshot of one moment.
func (t *Table) Hottest(n int) ([]HotKey, []SkewPoint) {
	top := &hotHeap{}
	var heat heatHistogram
	t.lock() // counts what was put off; later uses are missed
	t.mu.Unlock()
	next, more := uint64(0), true
	for more {
		next, more = t.scan(next, 64, func(l *leaf) {
			heat.addRest(l)
			for i := range l.n {
				accesses := l.accessesAt(i)
				heat.add(accesses, 1)
				if n > 0 && (len(*top) < n || accesses > (*top)[0].accesses) {
					if len(*top) == n {
						heap.Pop(top)
					}
					heap.Push(top, l.hotKey(i, accesses))
				}
			}
		})
	}
	keys := make([]HotKey, 0, len(*top))
	slices.SortFunc(*top, func(a, b heapKey) int {
		if a.accesses != b.accesses {
			return -1 + 2*b2i(a.accesses < b.accesses)
		}
		return -1 + 2*b2i(a.Key > b.Key)
	})
	for _, k := range *top {
		keys = append(keys, k.HotKey)
	}
	return keys, heat.curve()
}

// b2i returns 1 for true and 0 for false.
func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// scan calls visit for at most limit leaves, starting with the one that covers key, and returns
// the key to continue at. Positions are keys rather than leaf numbers, because leaves are cut
// and merged between calls.
func (t *Table) scan(key uint64, limit int, visit func(*leaf)) (next uint64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.leafOf(key, 0)
	end := min(at+limit, len(t.leaves))
	for ; at < end; at++ {
		visit(t.leaves[at])
	}
	if at == len(t.leaves) {
		return 0, false
	}
	return t.firsts[at], true
}

// hotKey returns a copy of everything that is known of the key at a place.
func (l *leaf) hotKey(place int, accesses uint64) heapKey {
	k := heapKey{HotKey: HotKey{Key: l.key(place)}, accesses: accesses}
	k.Workers = make([]Count, len(l.rows))
	for w := range l.rows {
		k.Workers[w] = l.countAt(w, place)
		k.Sums.Add(k.Workers[w].Sums)
		k.Earlier += k.Workers[w].Earlier
	}
	return k
}

// A heapKey is a HotKey with its accesses, which the heap compares often.
type heapKey struct {
	HotKey
	accesses uint64
}

// hotHeap is a heap with the coldest key on top, the next to be displaced.
type hotHeap []heapKey

func (h hotHeap) Len() int           { return len(h) }
func (h hotHeap) Less(i, j int) bool { return h[i].accesses < h[j].accesses }
func (h hotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *hotHeap) Push(x any)        { *h = append(*h, x.(heapKey)) }
func (h *hotHeap) Pop() any {
	last := len(*h) - 1
	k := (*h)[last]
	*h = (*h)[:last]
	return k
}

// A heatHistogram counts keys by their accesses. Classes are exact up to 64 accesses, and 1/32
// wide above. Its size is fixed, however many keys there are.
type heatHistogram struct {
	keys, accesses [64 * 32]uint64
}

// heatClass returns the class of a number of accesses: the top six bits and their position.
func heatClass(accesses uint64) int {
	if accesses < 64 {
		return int(accesses)
	}
	shift := bits.Len64(accesses) - 6
	return shift*32 + int(accesses>>shift)
}

// add counts keys with the same number of accesses.
func (h *heatHistogram) add(accesses, keys uint64) {
	c := heatClass(accesses)
	h.keys[c] += keys
	h.accesses[c] += accesses * keys
}

// addRest adds the keys that a folded leaf does not know one by one, as if they were equally
// hot.
func (h *heatHistogram) addRest(l *leaf) {
	if l.folded == nil {
		return
	}
	keys := max(l.folded.distinct.estimate(), 1)
	c := heatClass(l.folded.accesses / keys)
	h.keys[c] += keys
	h.accesses[c] += l.folded.accesses
}

// curve sums the classes up from the hottest.
func (h *heatHistogram) curve() []SkewPoint {
	var curve []SkewPoint
	var sum SkewPoint
	for c := len(h.keys) - 1; c >= 0; c-- {
		if h.keys[c] == 0 {
			continue
		}
		sum.Keys += h.keys[c]
		sum.Accesses += h.accesses[c]
		curve = append(curve, sum)
	}
	return curve
}

package counts

import (
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/page"
)

// Sums are amounts by plane.
type Sums = page.Sums

// Size describes the state of a table.
type Size struct {
	Workers       int
	Keys          uint64 // distinct ones; an estimate once anything was folded
	ExactKeys     uint64 // those that are counted one by one
	Blocks        int    // leaves, whose totals are exact
	FoldedBlocks  int
	MemoryBytes   int
	Total         Sums
	SketchTotal   uint64  // accesses in the sketch
	SketchBound   uint64  // see Table.Bound
	SketchPercent float64 // probability, in percent, that a single estimate is within SketchBound
}

// Exact reports whether every key is counted one by one.
func (s Size) Exact() bool { return s.FoldedBlocks == 0 }

// Size returns the state of the table.
func (t *Table) Size() Size {
	t.lock()
	defer t.mu.Unlock()
	return t.size()
}

// SizeSoFar returns the state without what is put off, which it does not count: keys that were
// first used lately are missing, and so are the newest amounts in Total.
func (t *Table) SizeSoFar() Size {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.size()
}

// size is Size for callers that hold t.mu.
func (t *Table) size() Size {
	s := Size{Workers: t.workers, Blocks: len(t.leaves), MemoryBytes: t.used + t.front.bytes(), Total: t.total}
	for _, l := range t.leaves {
		s.Keys += l.distinct()
		s.ExactKeys += uint64(l.n)
		if l.folded != nil {
			s.FoldedBlocks++
		}
	}
	if t.sketch != nil {
		s.MemoryBytes += t.sketch.bytes()
		s.SketchTotal, s.SketchBound = t.sketch.total, t.sketch.bound()
		s.SketchPercent = 100 * (1 - math.Exp(-sketchDepth))
	}
	return s
}

// Workers returns each worker's sums over all keys.
func (t *Table) Workers() []Sums {
	t.lock()
	defer t.mu.Unlock()
	sums := make([]Sums, t.workers)
	for _, l := range t.leaves {
		for w, r := range l.rows {
			if r != nil {
				sums[w].Add(r.total)
			}
		}
	}
	return sums
}

// Bound returns by how much the estimate of a key that is not counted one by one may exceed the
// truth, for at least 98% of such keys. An estimate is never below the truth. It is 0 while all
// counts are exact.
func (t *Table) Bound() uint64 {
	t.lock()
	defer t.mu.Unlock()
	if t.sketch == nil {
		return 0
	}
	return t.sketch.bound()
}

// A Count is what one worker did with one key.
type Count struct {
	Sums
	// Earlier estimates the accesses that are not in Sums, at most Table.Bound too high. It is
	// 0 for a key that was counted one by one throughout.
	Earlier uint64
	// Exact says that Sums are of this key alone. Otherwise they are 0, and Earlier is all that
	// is known.
	Exact bool
}

// Key returns what a worker did with a key.
func (t *Table) Key(worker int, key uint64) Count {
	t.lock()
	defer t.mu.Unlock()
	l := t.leaves[t.leafOf(key, 0)]
	found, _ := l.find([]uint64{key}, nil, nil)
	if len(found) == 0 {
		if l.folded == nil {
			return Count{Exact: true}
		}
		return Count{Earlier: t.sketch.estimate(pairHash(worker, key))}
	}
	return l.countAt(worker, int(found[0]))
}

// countAt returns what a worker did with the key at a place.
func (l *leaf) countAt(worker, place int) Count {
	c := Count{Exact: true}
	r := l.rowOrNil(worker)
	if r == nil {
		return c
	}
	for p := range c.Sums {
		c.Sums[p] = r.planes[p].at(place)
	}
	c.Earlier = r.planes[Earlier].at(place)
	return c
}

// A Block is a range of keys, including both ends, with what each worker did there.
type Block struct {
	First, Last uint64
	Keys        uint64 // distinct ones seen in it
	Folded      bool   // not all of them are counted one by one
	Workers     []Sums // by worker
}

// Blocks divides the keys seen from first to last into at most n blocks of about equally many
// keys. All sums are exact: blocks may end inside an open leaf but not inside a folded one, so
// that there may be fewer than n.
func (t *Table) Blocks(first, last uint64, n int) []Block {
	t.lock()
	defer t.mu.Unlock()
	low := t.leafOf(first, 0)
	seen := uint64(0)
	for i := low; i < len(t.leaves) && t.firsts[i] <= last; i++ {
		from, to := t.leaves[i].within(first, last)
		seen += t.leaves[i].weight(from, to)
	}
	if seen == 0 || n <= 0 {
		return nil
	}
	c := cutter{goal: seen, n: uint64(n), workers: t.workers}
	for i := low; i < len(t.leaves) && t.firsts[i] <= last; i++ {
		end := uint64(math.MaxUint64)
		if i+1 < len(t.leaves) {
			end = t.firsts[i+1] - 1
		}
		from, to := t.leaves[i].within(first, last)
		if t.leaves[i].folded != nil {
			c.addFolded(t.leaves[i], end)
		} else {
			c.addKeys(t.leaves[i], from, to)
		}
	}
	return c.blocks
}

// within returns the places [from, to) of the keys from first to last.
func (l *leaf) within(first, last uint64) (from, to int) {
	from, _ = l.search(first)
	to, ok := l.search(last)
	if ok {
		to++
	}
	return from, to
}

// search returns the first place whose key is not below k, and whether it is k.
func (l *leaf) search(k uint64) (int, bool) {
	if l.keys != nil {
		return slices.BinarySearch(l.keys, k)
	}
	low, high := 0, l.n
	for low < high {
		if mid := (low + high) / 2; l.key(mid) < k {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low, low < l.n && l.key(low) == k
}

// weight returns the number of keys that the places [from, to) of an open leaf, or the whole of
// a folded one, add to a block.
func (l *leaf) weight(from, to int) uint64 {
	if l.folded != nil {
		return max(l.distinct(), 1)
	}
	return uint64(to - from)
}

// A cutter fills blocks with leaves, in ascending order of keys.
type cutter struct {
	goal    uint64 // number of keys in all
	n       uint64 // blocks wanted
	workers int
	taken   uint64 // number of keys so far
	blocks  []Block
	open    bool // the last block is not full yet
}

// room returns the open block and how many keys it still takes. It opens one that begins at key
// first if there is none. Block i ends at the key number i*goal/n, so that rounding errors do
// not add up.
func (c *cutter) room(first uint64) (*Block, uint64) {
	if !c.open {
		c.blocks = append(c.blocks, Block{First: first, Workers: make([]Sums, c.workers)})
		c.open = true
	}
	limit := (uint64(len(c.blocks))*c.goal + c.n - 1) / c.n
	if limit <= c.taken {
		limit = c.taken + 1
	}
	return &c.blocks[len(c.blocks)-1], limit - c.taken
}

// take adds keys up to key last to the open block, which had room for so many.
func (c *cutter) take(b *Block, keys, last, room uint64) {
	b.Last = last
	b.Keys += keys
	c.taken += keys
	c.open = keys < room
}

// addFolded adds a folded leaf, whose last key is end, to the open block as a whole. It may
// make the block larger than wanted.
func (c *cutter) addFolded(l *leaf, end uint64) {
	b, room := c.room(l.first)
	b.Folded = true
	for w, r := range l.rows {
		if r != nil {
			b.Workers[w].Add(r.total)
		}
	}
	c.take(b, l.weight(0, 0), end, room)
}

// addKeys adds the places [from, to) of an open leaf, to as many blocks as it takes.
func (c *cutter) addKeys(l *leaf, from, to int) {
	for from < to {
		b, room := c.room(l.key(from))
		end := from + int(min(room, uint64(to-from)))
		for w, r := range l.rows {
			switch {
			case r == nil:
			case from == 0 && end == l.n:
				b.Workers[w].Add(r.total)
			default:
				for i := from; i < end; i++ {
					for p := range b.Workers[w] {
						b.Workers[w][p] += r.planes[p].at(i)
					}
				}
			}
		}
		c.take(b, uint64(end-from), l.key(end-1), room)
		from = end
	}
}

package graph

import (
	"context"
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// A bitmap numbers ids that are dense enough: 12 bytes per 64 possible ids. The number of an id is
// the number of bits before it.
type bitmap struct {
	words []uint64
	// By word, the number of ids in the words before it.
	before []uint32
	count  int
}

// newBitmap marks the ids of narrow blocks, with all cores on one bitmap. It reads before it sets a
// bit, since most ids are repeated and an atomic write would be contended.
func newBitmap(ctx context.Context, blocks []block, maxID uint64) (*bitmap, error) {
	m := &bitmap{words: make([]uint64, maxID/64+1), before: make([]uint32, maxID/64+1)}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range blocks {
		group.Go(func() error {
			for _, id := range blocks[i].narrow {
				word, bit := &m.words[id/64], uint64(1)<<(id%64)
				if atomic.LoadUint64(word)&bit == 0 {
					atomic.OrUint64(word, bit)
				}
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if len(blocks) == 0 {
		return m, nil
	}
	for i, word := range m.words {
		m.before[i] = uint32(m.count)
		m.count += bits.OnesCount64(word)
	}
	return m, nil
}

func (m *bitmap) features() []uint64 {
	ids := make([]uint64, 0, m.count)
	for i, word := range m.words {
		for ; word != 0; word &= word - 1 {
			ids = append(ids, uint64(i)*64+uint64(bits.TrailingZeros64(word)))
		}
	}
	return ids
}

// rank counts the bits before each id: those of all words before its own, and those below it within
// the word.
func (m *bitmap) rank(ids *block, to []uint32) {
	for i, id := range ids.narrow {
		below := m.words[id/64] & (1<<(id%64) - 1)
		to[i] = m.before[id/64] + uint32(bits.OnesCount64(below))
	}
}

// A directory numbers ids of any size: their sorted list, and for each of many equal ranges of ids
// where in the list it starts. Ids that are spread evenly, as hashed ones are, are found in a step
// or two, others by binary search in their range.
type directory struct {
	ids []uint64
	// ids[start[r]:start[r+1]] are those with id>>shift == r.
	start []uint32
	shift int
}

// newDirectory sorts the ids of the blocks, which takes 8 bytes per edge, and releases what
// repeated ids took. There must be an id; the bitmap serves a builder without any.
func newDirectory(ctx context.Context, blocks []block, edges int64) (*directory, error) {
	ids := make([]uint64, 0, edges)
	for i := range blocks {
		for _, id := range blocks[i].narrow {
			ids = append(ids, uint64(id))
		}
		ids = append(ids, blocks[i].wide...)
	}
	if err := sortParallel(ctx, ids); err != nil {
		return nil, err
	}
	ids = slices.Compact(ids)
	// Most ids repeat, and the slice is kept for as long as the graph.
	if len(ids) < cap(ids)*3/4 {
		ids = slices.Clone(ids)
		collect(edges)
	}
	d := &directory{ids: ids}
	// About four ids per range if they are spread evenly.
	ranges := len(ids)/4 + 1
	d.shift = max(0, bits.Len64(ids[len(ids)-1])-bits.Len(uint(ranges)))
	d.start = make([]uint32, ids[len(ids)-1]>>d.shift+2)
	for _, id := range ids {
		d.start[id>>d.shift+1]++
	}
	for r := range len(d.start) - 1 {
		d.start[r+1] += d.start[r]
	}
	return d, nil
}

func (d *directory) features() []uint64 { return d.ids }

// rank looks up each id. A directory is the choice for sparse ids, so blocks may be of either
// width.
func (d *directory) rank(ids *block, to []uint32) {
	for i, id := range ids.narrow {
		to[i] = d.find(uint64(id))
	}
	for i, id := range ids.wide {
		to[i] = d.find(id)
	}
}

// find returns the number of an id, which must be in the directory.
func (d *directory) find(id uint64) uint32 {
	from, to := d.start[id>>d.shift], d.start[id>>d.shift+1]
	// Eight ids are in one or two cache lines, where a scan is faster than further halving.
	for to-from > 8 {
		middle := (from + to) / 2
		if d.ids[middle] <= id {
			from = middle
		} else {
			to = middle
		}
	}
	for d.ids[from] != id {
		from++
	}
	return from
}

// sortParallel sorts in place: a quicksort that hands one side of each partition to another
// goroutine until the parts are small.
func sortParallel(ctx context.Context, ids []uint64) error {
	group, ctx := errgroup.WithContext(ctx)
	var split func(ids []uint64)
	// Parts of about a quarter of a core's share keep all cores busy until the end, even if pivots
	// are poor.
	least := max(1<<16, len(ids)/(4*runtime.GOMAXPROCS(0)))
	split = func(ids []uint64) {
		for len(ids) > least && ctx.Err() == nil {
			low, high := partitionIDs(ids)
			// The pivot is the smallest id, as when most are equal. Sort the rest directly.
			if len(low) == 0 || len(high) == 0 {
				break
			}
			group.Go(func() error { split(low); return ctx.Err() })
			ids = high
		}
		if ctx.Err() == nil {
			slices.Sort(ids)
		}
	}
	group.Go(func() error { split(ids); return ctx.Err() })
	return group.Wait()
}

// partitionIDs divides ids in place into those below a pivot, the median of nine, and the others.
func partitionIDs(ids []uint64) (low, high []uint64) {
	var nine [9]uint64
	for i := range nine {
		nine[i] = ids[i*(len(ids)-1)/8]
	}
	slices.Sort(nine[:])
	pivot := nine[4]
	i, j := 0, len(ids)
	for i < j {
		if ids[i] < pivot {
			i++
			continue
		}
		j--
		ids[i], ids[j] = ids[j], ids[i]
	}
	return ids[:i], ids[i:]
}

package counts

import (
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/page"
)

// AddTo counts the batch in a grid. It walks the blocks forward with the keys and starts over
// only where the keys descend.
func (b *Batch) AddTo(g *page.Grid) {
	for b.Worker >= len(g.Rows) {
		g.Rows = append(g.Rows, nil)
	}
	if g.Rows[b.Worker] == nil {
		g.Rows[b.Worker] = make([]Sums, len(g.Firsts))
	}
	row := g.Rows[b.Worker]
	if b.Run.N > 0 {
		b.addRun(g.Firsts, row)
	}
	end, at := 0, 0 // of the ascending run; block
	for from := 0; from < len(b.Keys); {
		if from == end {
			end, at = b.ascendingRun(from), 0
		}
		if key := b.Keys[from]; at+1 < len(g.Firsts) && g.Firsts[at+1] <= key {
			if at++; at+1 < len(g.Firsts) && g.Firsts[at+1] <= key { // not the next one
				at += blockOf(g.Firsts[at:], key)
			}
		}
		to := end
		if at+1 < len(g.Firsts) {
			to = from + countBelow(b.Keys[from:end], g.Firsts[at+1])
		}
		for p, amount := range b.Each {
			row[at][p] += amount * uint64(to-from)
		}
		for i := from; b.Lens != nil && i < to; i++ {
			row[at][b.LenPlane] += b.lenBytes(i)
		}
		from = to
	}
}

// blockOf returns the number of the block that has key, which must not be below the first
// block.
func blockOf(firsts []uint64, key uint64) int {
	at, ok := slices.BinarySearch(firsts, key)
	if !ok {
		at--
	}
	return at
}

// Firsts lays out at most n blocks for a [Grid], with about equally many of the table's keys
// each. A block is always one half of a wider one, so it begins at a multiple of its size, a
// power of two. Blocks laid out at different times therefore nest: two grids have whole blocks
// in common, and can be added up.
func (t *Table) Firsts(n int) []uint64 {
	const finer = 8
	blocks := t.Blocks(0, math.MaxUint64, finer*n)
	sample := make([]uint64, len(blocks))
	for i, b := range blocks {
		sample[i] = b.First
	}
	least := max((2*len(sample)+n-1)/max(n, 1), 1) // a block with more of the sampled keys is halved
	firsts := halve(nil, 0, 64, sample, least)
	if len(firsts) == 0 || firsts[0] != 0 {
		firsts = append([]uint64{0}, firsts...)
	}
	return firsts
}

// halve appends the firsts of the blocks into which the 2^bits keys from low on are divided.
// sample are the sampled keys among them. An empty half gets no block of its own and belongs to
// the block below.
func halve(firsts []uint64, low uint64, bits int, sample []uint64, least int) []uint64 {
	if len(sample) == 0 {
		return firsts
	}
	if len(sample) <= least || bits == 0 {
		return append(firsts, low)
	}
	middle := low + 1<<(bits-1)
	at, _ := slices.BinarySearch(sample, middle)
	firsts = halve(firsts, low, bits-1, sample[:at], least)
	return halve(firsts, middle, bits-1, sample[at:], least)
}

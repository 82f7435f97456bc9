package counts

import (
	"math"
	"slices"
)

// A Grid counts like a table, but by blocks that are laid down beforehand, so
// that a stretch of time can be kept in little memory. It is not safe for
// concurrent use.
type Grid struct {
	// Firsts are the blocks' first keys, ascending, from 0; a block ends
	// before the next one's first.
	Firsts []uint64
	// Rows are by worker, then block; nil for a worker that did nothing.
	Rows [][]Sums
}

// Add counts the batch.
func (g *Grid) Add(b Batch) {
	for b.Worker >= len(g.Rows) {
		g.Rows = append(g.Rows, nil)
	}
	if g.Rows[b.Worker] == nil {
		g.Rows[b.Worker] = make([]Sums, len(g.Firsts))
	}
	row := g.Rows[b.Worker]
	if b.Run.N > 0 {
		g.addRun(&b, row)
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

// blockOf returns the number of the block that key is in, not below the first.
func blockOf(firsts []uint64, key uint64) int {
	at, ok := slices.BinarySearch(firsts, key)
	if !ok {
		at--
	}
	return at
}

// Regroup returns the grid's rows for coarser blocks, whose firsts must all be
// among the grid's.
func (g *Grid) Regroup(firsts []uint64) [][]Sums {
	rows := make([][]Sums, len(g.Rows))
	for w, row := range g.Rows {
		if row == nil {
			continue
		}
		rows[w] = make([]Sums, len(firsts))
		at := 0
		for i, sums := range row {
			for at+1 < len(firsts) && firsts[at+1] <= g.Firsts[i] {
				at++
			}
			add(&rows[w][at], sums)
		}
	}
	return rows
}

// Firsts lays down at most n blocks for a [Grid], with about as many of the
// table's keys each. They begin at multiples of powers of two, each block
// being one half of a wider one, so that blocks laid down at different times
// nest: what two grids have in common are whole blocks of both.
func (t *Table) Firsts(n int) []uint64 {
	const finer = 8
	blocks := t.Blocks(0, math.MaxUint64, finer*n)
	sample := make([]uint64, len(blocks))
	for i, b := range blocks {
		sample[i] = b.First
	}
	least := max((2*len(sample)+n-1)/max(n, 1), 1) // a block with more is halved
	firsts := halve(nil, 0, 64, sample, least)
	if len(firsts) == 0 || firsts[0] != 0 {
		firsts = append([]uint64{0}, firsts...)
	}
	return firsts
}

// halve appends the firsts of the blocks into which the 2^bits keys from low
// on are cut; sample are those of the sampled keys that are among them.
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

// Common returns the block firsts that all grids have; nil without grids.
func Common(grids []*Grid) []uint64 {
	if len(grids) == 0 {
		return nil
	}
	common := slices.Clone(grids[0].Firsts)
	for _, g := range grids[1:] {
		if len(g.Firsts) == len(common) && slices.Equal(g.Firsts, common) {
			continue
		}
		common = slices.DeleteFunc(common, func(k uint64) bool {
			_, ok := slices.BinarySearch(g.Firsts, k)
			return !ok
		})
	}
	return common
}

package fleet

import (
	"math"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// gridOf returns a report's uses as a grid of n rows. The row of a worker is rows[name]; workers
// that rows does not have share row 0. The first block is extended to key 0, so that grids of
// different hosts cover the same keys.
func gridOf(r *api.JobReport, rows map[string]int, n int) *page.Grid {
	g := &page.Grid{Firsts: []uint64{}, Rows: make([][]page.Sums, n)}
	for i, b := range r.GetBlocks() {
		first := b.GetFirst()
		if i == 0 {
			first = 0
		}
		g.Firsts = append(g.Firsts, first)
	}
	for _, u := range r.GetUses() {
		row := &g.Rows[rows[u.GetWorker()]]
		if *row == nil {
			*row = make([]page.Sums, len(g.Firsts))
		}
		for i := range *row { // under two names that have become one, a worker occurs twice
			for p, n := range []uint64{u.GetPulls()[i], u.GetPushes()[i], u.GetPulledBytes()[i], u.GetPushedBytes()[i]} {
				(*row)[i][p] += n
			}
		}
	}
	return g
}

// Heatmap implements page.State. Hosts divide the keys into blocks of their own; the heatmap has
// the block edges that all of them have, so that no count has to be divided.
func (s *State) Heatmap(job string, q page.HeatmapQuery) (page.Heatmap, error) {
	if q.Rows > 0 {
		return s.heatmapByTime(job, q, time.Now())
	}
	reports, span, err := s.during(job, q.Range)
	if err != nil {
		return page.Heatmap{}, err
	}
	workers := map[string]bool{}
	for _, r := range reports {
		for _, u := range r.GetUses() {
			workers[u.GetWorker()] = true
		}
	}
	// Finest says that the blocks are as fine as the reports allow; it is cleared below if they are
	// joined.
	h := page.Heatmap{Job: job, Range: span, Measure: q.Measure, Exact: true, Workers: names(workers), Finest: true}
	rows := map[string]int{}
	for i, name := range h.Workers {
		rows[name] = i
	}
	var grids []*page.Grid
	for _, r := range reports {
		h.Exact = h.Exact && r.GetExact()
		h.SampledOneIn = max(h.SampledOneIn, r.GetSampledOneIn())
		if len(r.GetBlocks()) > 0 {
			grids = append(grids, gridOf(r, rows, len(rows)))
		}
	}
	// Edges that some host lacks cannot be kept: its counts would have to be split.
	firsts := page.CommonEdges(grids)
	// Join neighbouring blocks until they fit in as many as were asked for.
	if each := (len(firsts) + q.Blocks - 1) / max(q.Blocks, 1); each > 1 {
		h.Finest = false
		coarse := firsts[:0:0]
		for i := 0; i < len(firsts); i += each {
			coarse = append(coarse, firsts[i])
		}
		firsts = coarse
	}
	// Keys are counted from the blocks of the reports, since grids have uses only.
	keys := keysIn(reports, firsts)
	sums := make([][]page.Sums, len(h.Workers))
	// Every host's grid is regrouped to the common edges, and rows of one worker are added.
	for _, g := range grids {
		for w, row := range g.Regroup(firsts) {
			if sums[w] == nil {
				sums[w] = make([]page.Sums, len(firsts))
			}
			for b := range row {
				for p := range row[b] {
					sums[w][b][p] += row[b][p]
				}
			}
		}
	}
	fill(&h, q, firsts, keys, sums)
	return h, nil
}

// keysIn returns, by the first key of each block, the largest number of keys that any host knows in
// it. Hosts may know the same keys, so that is a lower bound.
func keysIn(reports []*api.JobReport, firsts []uint64) map[uint64]uint64 {
	keys := map[uint64]uint64{}
	if len(firsts) == 0 { // nothing was used in the range
		return keys
	}
	for _, r := range reports {
		known := map[uint64]uint64{}
		for _, b := range r.GetBlocks() {
			known[blockOf(firsts, b.GetFirst())] += b.GetKeys()
		}
		for first, n := range known {
			keys[first] = max(keys[first], n)
		}
	}
	return keys
}

// blockOf returns the first key of the block that contains the key. firsts must not be empty.
func blockOf(firsts []uint64, key uint64) uint64 {
	at, ok := slices.BinarySearch(firsts, key)
	if !ok {
		at--
	}
	return firsts[max(at, 0)]
}

// fill sets the heatmap's blocks within the queried keys, and one row of counts for each row of
// sums. A row that is nil is all zero.
func fill(h *page.Heatmap, q page.HeatmapQuery, firsts []uint64, keys map[uint64]uint64, sums [][]page.Sums) {
	h.Counts = make([][]uint64, len(sums))
	for i, first := range firsts {
		last := uint64(math.MaxUint64)
		if i+1 < len(firsts) {
			last = firsts[i+1] - 1
		}
		// Blocks that overlap the queried keys are shown whole.
		if last < uint64(q.First) || first > uint64(q.Last) {
			continue
		}
		h.Blocks = append(h.Blocks, page.NewBlock(first, last, keys[first], false))
		for row, sum := range sums {
			n := uint64(0)
			if sum != nil {
				n = q.Measure.Of(sum[i])
			}
			h.Counts[row] = append(h.Counts[row], n)
		}
	}
}

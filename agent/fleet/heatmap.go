package fleet

import (
	"math"
	"slices"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/planner/api"
)

// grid lays a report's uses out as a grid, worker i in row rows[name].
func grid(r *api.JobReport, rows map[string]int) *counts.Grid {
	g := &counts.Grid{Firsts: []uint64{}, Rows: make([][]counts.Sums, len(rows))}
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
			*row = make([]counts.Sums, len(g.Firsts))
		}
		for i := range *row { // a node may have been known by two names
			for p, n := range []uint64{u.GetPulls()[i], u.GetPushes()[i], u.GetPulledBytes()[i], u.GetPushedBytes()[i]} {
				(*row)[i][p] += n
			}
		}
	}
	return g
}

// Heatmap implements web.State. It has the blocks that all hosts' reports have
// in common, over all time.
func (s *State) Heatmap(job string, q web.HeatmapQuery) (web.Heatmap, error) {
	reports, err := s.job(job)
	if err != nil {
		return web.Heatmap{}, err
	}
	workers := map[string]bool{}
	for _, r := range reports {
		for _, u := range r.GetUses() {
			workers[u.GetWorker()] = true
		}
	}
	h := web.Heatmap{Job: job, Measure: q.Measure, Exact: true, Workers: names(workers), Finest: true}
	rows := map[string]int{}
	for i, name := range h.Workers {
		rows[name] = i
	}
	var grids []*counts.Grid
	keys := map[uint64]uint64{} // by first of a block, the most that any host knows
	for _, r := range reports {
		h.Exact = h.Exact && r.GetExact()
		h.SampledOneIn = max(h.SampledOneIn, r.GetSampledOneIn())
		if len(r.GetBlocks()) > 0 {
			grids = append(grids, grid(r, rows))
		}
	}
	firsts := counts.Common(grids)
	if each := (len(firsts) + q.Blocks - 1) / max(q.Blocks, 1); each > 1 {
		h.Finest = false
		coarse := firsts[:0:0]
		for i := 0; i < len(firsts); i += each {
			coarse = append(coarse, firsts[i])
		}
		firsts = coarse
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
	sums := make([][]counts.Sums, len(h.Workers))
	for _, g := range grids {
		for w, row := range g.Regroup(firsts) {
			if sums[w] == nil {
				sums[w] = make([]counts.Sums, len(firsts))
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

// blockOf returns the first of the block that holds the key.
func blockOf(firsts []uint64, key uint64) uint64 {
	at, ok := slices.BinarySearch(firsts, key)
	if !ok {
		at--
	}
	return firsts[max(at, 0)]
}

// fill puts the blocks that were asked for into the heatmap.
func fill(h *web.Heatmap, q web.HeatmapQuery, firsts []uint64, keys map[uint64]uint64, sums [][]counts.Sums) {
	h.Counts = make([][]uint64, len(h.Workers))
	for i, first := range firsts {
		last := uint64(math.MaxUint64)
		if i+1 < len(firsts) {
			last = firsts[i+1] - 1
		}
		if last < uint64(q.First) || first > uint64(q.Last) {
			continue
		}
		h.Blocks = append(h.Blocks, web.NewBlock(first, last, keys[first], false))
		for w := range h.Workers {
			n := uint64(0)
			if sums[w] != nil {
				n = q.Measure.Of(sums[w][i])
			}
			h.Counts[w] = append(h.Counts[w], n)
		}
	}
}

// Keys implements web.State: the hottest keys that any host reported, with what
// all of those that reported them say.
func (s *State) Keys(job string, n int) (web.Keys, error) {
	reports, err := s.job(job)
	if err != nil {
		return web.Keys{}, err
	}
	workers := map[string]bool{}
	for _, r := range reports {
		for _, u := range r.GetUses() {
			workers[u.GetWorker()] = true
		}
	}
	k := web.Keys{Job: job, Workers: names(workers), Hottest: []web.HotKey{}, Skew: []web.SkewPoint{}, Sketch: web.Sketch{Job: job}}
	hot := map[uint64]*web.HotKey{}
	for _, r := range reports {
		for _, key := range r.GetHottest() {
			e := hot[key.GetKey()]
			if e == nil {
				e = &web.HotKey{Key: web.Key(key.GetKey()), Text: web.Key(key.GetKey()).Text(), Workers: make([]uint64, len(k.Workers))}
				hot[key.GetKey()] = e
			}
			e.Accesses += key.GetAccesses()
			e.Bytes += key.GetBytes()
			for i, used := range key.GetWorkers() {
				if i < len(r.GetUses()) {
					e.Workers[slices.Index(k.Workers, r.GetUses()[i].GetWorker())] += used
				}
			}
		}
	}
	for _, e := range hot {
		k.Hottest = append(k.Hottest, *e)
	}
	slices.SortFunc(k.Hottest, func(a, b web.HotKey) int {
		if a.Accesses != b.Accesses {
			return int(min(max(int64(b.Accesses)-int64(a.Accesses), -1), 1))
		}
		return int(min(max(int64(a.Key)-int64(b.Key), -1), 1))
	})
	k.Hottest = k.Hottest[:min(n, len(k.Hottest))]
	return k, nil
}

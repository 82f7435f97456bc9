package agent

import (
	"math"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
)

// Heatmap implements page.State.
func (a *Agent) Heatmap(job string, q page.HeatmapQuery) (page.Heatmap, error) {
	v, err := a.view(job)
	if err != nil {
		return page.Heatmap{}, err
	}
	if q.Rows > 0 {
		return heatmapByTime(&v, q, a.now()), nil
	}
	return heatmap(&v, q), nil
}

// heatmap returns the heatmap of a job by worker. Over all time it comes from the table, whose
// blocks are as fine as memory allows; for a range of time, from the intervals' grids.
func heatmap(v *observe.JobView, q page.HeatmapQuery) page.Heatmap {
	size := v.Job.Sums.Table.Size()
	h := page.Heatmap{
		Job: v.Job.Scheduler.String(), Measure: q.Measure, Range: q.Range,
		Exact: size.Exact() && v.SampledOneIn <= 1, SampledOneIn: max(v.SampledOneIn, 1),
	}
	var blocks []counts.Block
	// Without a range, the table has finer blocks than any interval, and counts from the start.
	if q.Range == (page.Range{}) {
		blocks = v.Job.Sums.Table.Blocks(uint64(q.First), uint64(q.Last), q.Blocks)
		h.Finest = len(blocks) < q.Blocks
	} else {
		blocks, h.Finest = blocksDuring(v.Job.Sums, q)
	}
	workers := order(v.WorkersByIndex)
	h.Workers = picked(v.WorkersByIndex, workers)
	for _, b := range blocks {
		h.Blocks = append(h.Blocks, page.NewBlock(b.First, b.Last, b.Keys, b.Folded))
	}
	for _, w := range workers {
		row := make([]uint64, len(blocks))
		for i, b := range blocks {
			if w < len(b.Workers) {
				row[i] = q.Measure.Of(b.Workers[w])
			}
		}
		h.Counts = append(h.Counts, row)
	}
	h.ErrorPercent = cellError(v, q.Measure, h.Counts)
	return h
}

// cellError returns the error of an average cell that is not empty, in percent, because
// requests are sampled.
func cellError(v *observe.JobView, m page.Measure, cells [][]uint64) float64 {
	return errorOfCells(coverage(v), v.Job.Sums.Table.Size().Total, m, cells)
}

// errorOfCells is cellError on plain data. It assumes that an average cell has its share of the
// job's pulls and pushes, that the keys of a step are sampled together, and that bytes are as
// uncertain as the uses that moved them.
func errorOfCells(s *page.JobSampling, total counts.Sums, m page.Measure, cells [][]uint64) float64 {
	sum, n := 0.0, 0
	for _, row := range cells {
		for _, c := range row {
			if c > 0 {
				sum += float64(c)
				n++
			}
		}
	}
	all := float64(m.Of(total))
	if n == 0 || all == 0 {
		return 0
	}
	// The average cell's share of the job. Its uses are then taken to be divided into pulls and
	// pushes as the job's are.
	share := sum / float64(n) / all
	pulls, pushes := share*float64(total[counts.Pulls]), share*float64(total[counts.Pushes])
	switch m {
	case page.Pulls, page.PulledBytes:
		pushes = 0
	case page.Pushes, page.PushedBytes:
		pulls = 0
	}
	if pulls+pushes == 0 {
		return 0
	}
	return 100 * s.UsesError(pulls, pushes) / (pulls + pushes)
}

// blocksDuring returns the blocks of a range of time, as they were laid out during it, and
// whether a smaller range of keys would not show finer ones.
func blocksDuring(sums *counts.Locality, q page.HeatmapQuery) (blocks []counts.Block, finest bool) {
	r := q.Range
	view := during(sums, r)
	grid := view.Heat
	for i, first := range grid.Firsts {
		last := uint64(math.MaxUint64)
		if i+1 < len(grid.Firsts) {
			last = grid.Firsts[i+1] - 1
		}
		if last < uint64(q.First) || first > uint64(q.Last) {
			continue
		}
		b := counts.Block{First: first, Last: last, Workers: make([]counts.Sums, len(grid.Rows))}
		// The grid knows no keys, only the limits of its blocks. The table says how many keys a
		// block has and where they begin and end.
		for _, part := range sums.Table.Blocks(first, last, 1) {
			b.First, b.Last, b.Keys, b.Folded = max(part.First, first), min(part.Last, last), part.Keys, part.Folded
		}
		// A block may have been used at another time only.
		used := false
		for w, row := range grid.Rows {
			if row != nil {
				b.Workers[w] = row[i]
				used = used || row[i] != counts.Sums{}
			}
		}
		if used {
			blocks = append(blocks, b)
		}
	}
	if len(blocks) <= q.Blocks {
		return blocks, true
	}
	return joinBlocks(blocks, q.Blocks), false
}

// joinBlocks joins neighbouring blocks until there are at most n. It adds to the sums of the
// first of each group, which the caller gives up.
func joinBlocks(blocks []counts.Block, n int) []counts.Block {
	each := (len(blocks) + n - 1) / n
	var joined []counts.Block
	for i := 0; i < len(blocks); i += each {
		b := blocks[i]
		for _, next := range blocks[i+1 : min(i+each, len(blocks))] {
			// A joined block is folded if any part of it is: its number of keys is then an
			// estimate.
			b.Last, b.Keys, b.Folded = next.Last, b.Keys+next.Keys, b.Folded || next.Folded
			for w := range b.Workers {
				for p := range b.Workers[w] {
					b.Workers[w][p] += next.Workers[w][p]
				}
			}
		}
		joined = append(joined, b)
	}
	return joined
}

// Keys implements page.State.
func (a *Agent) Keys(job string, n int) (page.Keys, error) {
	v, err := a.view(job)
	if err != nil {
		return page.Keys{}, err
	}
	return hottest(&v, n), nil
}

// hottest returns the n hottest keys of a job and its skew curve. Errors combine those of
// sampling with those of the sketch.
func hottest(v *observe.JobView, n int) page.Keys {
	hot, skew := v.Job.Sums.Table.Hottest(n)
	workers := order(v.WorkersByIndex)
	k := page.Keys{
		Job: v.Job.Scheduler.String(), Workers: picked(v.WorkersByIndex, workers),
		Hottest: []page.HotKey{}, Skew: []page.SkewPoint{}, Sketch: sketch(v),
	}
	covered := coverage(v)
	for _, key := range hot {
		entry := page.HotKey{
			Key: page.Key(key.Key), Text: page.Key(key.Key).Text(), Accesses: key.Accesses(),
			Pulls: key.Sums[counts.Pulls], Pushes: key.Sums[counts.Pushes],
			Bytes:     key.Sums[counts.PulledBytes] + key.Sums[counts.PushedBytes],
			Estimated: key.Earlier, Server: home(v, key.Key),
			// Two independent uncertainties, added: uses that sampling missed, and uses before
			// the key was counted on its own.
			Error: uint64(covered.UsesError(float64(key.Sums[counts.Pulls]), float64(key.Sums[counts.Pushes])) + covered.CountError(float64(key.Earlier))),
		}
		for _, w := range workers {
			n := uint64(0)
			if w < len(key.Workers) {
				n = key.Workers[w].Accesses() + key.Workers[w].Earlier
			}
			entry.Workers = append(entry.Workers, n)
		}
		k.Hottest = append(k.Hottest, entry)
	}
	for _, p := range skew {
		k.Skew = append(k.Skew, page.SkewPoint{Keys: p.Keys, Accesses: p.Accesses})
	}
	return k
}

func sketch(v *observe.JobView) page.Sketch {
	s := v.Job.Sums.Table.Size()
	return page.Sketch{
		Job: v.Job.Scheduler.String(), Exact: s.Exact(), DistinctKeys: s.Keys, ExactKeys: s.ExactKeys,
		Blocks: s.Blocks, FoldedBlocks: s.FoldedBlocks, MemoryBytes: s.MemoryBytes,
		Bound: s.SketchBound, Percent: s.SketchPercent,
	}
}

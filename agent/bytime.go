package agent

import (
	"math"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
)

// heatmapByTime returns a heatmap with a row for each stretch of time instead of each worker.
// Intervals of counting do not coincide with rows: the counts of an interval are divided among
// the rows in proportion to the time that it shares with each.
func heatmapByTime(v *observe.JobView, q page.HeatmapQuery, now time.Time) page.Heatmap {
	size := v.Job.Sums.Table.Size()
	h := page.Heatmap{
		Job: v.Job.Scheduler.String(), Measure: q.Measure, Range: q.Range, Finest: true,
		Exact: size.Exact() && v.SampledOneIn <= 1, SampledOneIn: max(v.SampledOneIn, 1),
	}
	from, to := int64(0), int64(0)
	if !q.Range.From.IsZero() {
		from = q.Range.From.UnixNano()
	}
	if !q.Range.To.IsZero() {
		to = q.Range.To.UnixNano()
	}
	heats, firsts := v.Job.Sums.Heats(from, to)
	if len(heats) == 0 {
		return h
	}
	// Rows end now: a future that is empty would compress the rest.
	if to == 0 || to > now.UnixNano() {
		to = now.UnixNano()
	}
	h.Times = page.RowsOf(time.Unix(0, max(from, heats[0].Start)), time.Unix(0, max(to, heats[0].End)), q.Rows)
	// Floats, since an interval's counts are split among rows.
	sums := make([][]float64, len(h.Times))
	for i := range sums {
		sums[i] = make([]float64, len(firsts))
	}
	for _, heat := range heats {
		// Summed over workers first: a row here is of all of them.
		blocks := ofWorkers(&heat, v.WorkersByIndex, &q, len(firsts))
		// Within an interval, uses are taken to be spread evenly; nothing finer is kept.
		for i, share := range shares(h.Times, heat.Start, heat.End) {
			for b, n := range blocks {
				sums[i][b] += share * n
			}
		}
	}
	fillByTime(&h, &q, v, firsts, sums)
	return h
}

// shares returns the fraction of the stretch from start to end (nanoseconds) that lies in each
// row. A stretch without length belongs to one row.
func shares(rows []page.Range, start, end int64) map[int]float64 {
	out := map[int]float64{}
	for i, r := range rows {
		from, to := max(start, r.From.UnixNano()), min(end, r.To.UnixNano())
		switch {
		case to > from:
			out[i] = float64(to-from) / float64(end-start)
		case start == end && start >= r.From.UnixNano() && start < r.To.UnixNano():
			out[i] = 1
		}
	}
	return out
}

// ofWorkers returns the sums of the selected workers in each block.
func ofWorkers(heat *counts.Heat, names []string, q *page.HeatmapQuery, blocks int) []float64 {
	sums := make([]float64, blocks)
	for w, row := range heat.Rows {
		if row == nil || w >= len(names) || names[w] == "" || !q.Of(names[w]) {
			continue
		}
		for b, cell := range row {
			sums[b] += float64(q.Measure.Of(cell))
		}
	}
	return sums
}

// fillByTime fills in the blocks that were asked for and used, joining neighbours if there are
// more than the query allows. Sums are rounded only here, so that the parts of a count add up.
func fillByTime(h *page.Heatmap, q *page.HeatmapQuery, v *observe.JobView, firsts []uint64, sums [][]float64) {
	var blocks []counts.Block
	var columns []int
	for b, first := range firsts {
		last := uint64(math.MaxUint64)
		if b+1 < len(firsts) {
			last = firsts[b+1] - 1
		}
		used := false
		for _, row := range sums {
			used = used || row[b] > 0
		}
		// Blocks without any use would only make the columns narrower.
		if !used || last < uint64(q.First) || first > uint64(q.Last) {
			continue
		}
		block := counts.Block{First: first, Last: last}
		for _, part := range v.Job.Sums.Table.Blocks(first, last, 1) {
			block.First, block.Last, block.Keys, block.Folded = max(part.First, first), min(part.Last, last), part.Keys, part.Folded
		}
		blocks, columns = append(blocks, block), append(columns, b)
	}
	// Each column of the heatmap joins so many blocks.
	each := max((len(blocks)+q.Blocks-1)/q.Blocks, 1)
	h.Finest = each == 1
	h.Counts = make([][]uint64, len(h.Times))
	for i := 0; i < len(blocks); i += each {
		joined := joinBlocks(blocks[i:min(i+each, len(blocks))], 1)[0]
		h.Blocks = append(h.Blocks, page.NewBlock(joined.First, joined.Last, joined.Keys, joined.Folded))
		for row := range h.Times {
			n := 0.0
			for _, b := range columns[i:min(i+each, len(blocks))] {
				n += sums[row][b]
			}
			h.Counts[row] = append(h.Counts[row], uint64(math.Round(n)))
		}
	}
	// Of the joined cells, which have more counts each and thus smaller errors.
	h.ErrorPercent = cellError(v, q.Measure, h.Counts)
}

package fleet

import (
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// heatmapByTime returns a heatmap with a row for each of q.Rows stretches of time, each the
// difference between what hosts had reported at its end and at its beginning. It costs two reads of
// the history and a subtraction of all hosts' blocks per row.
func (s *State) heatmapByTime(job string, q page.HeatmapQuery, now time.Time) (page.Heatmap, error) {
	h := page.Heatmap{Job: job, Range: q.Range, Measure: q.Measure, Exact: true, Finest: true}
	if s.Past == nil {
		return h, page.ErrNoRange
	}
	newest, err := s.job(job)
	if err != nil {
		return h, err
	}
	h.Times = page.RowsOf(s.began(q.Range.From, now), ended(q.Range.To, now), q.Rows)
	// A nil grid is a row without uses.
	grids := make([]*page.Grid, len(h.Times))
	var all []*page.Grid
	for i, row := range h.Times {
		// Rows are close in time, so consecutive ones may rest on the same reports and then show
		// nothing.
		reports, _, err := s.during(job, row)
		if err != nil {
			return h, err
		}
		if grids[i] = s.used(&h, &q, reports); grids[i] != nil {
			all = append(all, grids[i])
		}
	}
	// Blocks change over the hour. Only edges common to all rows can be compared.
	firsts := page.CommonEdges(all)
	sums := make([][]page.Sums, len(grids))
	for i, g := range grids {
		if g != nil {
			sums[i] = g.Regroup(firsts)[0]
		}
	}
	// Unused blocks would take up room that the used ones need: the number of blocks is limited.
	firsts, sums = inUse(firsts, sums)
	if each := (len(firsts) + q.Blocks - 1) / max(q.Blocks, 1); each > 1 {
		h.Finest = false
		firsts, sums = coarser(firsts, sums, each)
	}
	fill(&h, q, firsts, keysIn(newest, firsts), sums)
	return h, nil
}

// began returns the beginning of the first row: as queried, but not before the oldest kept report.
func (s *State) began(from, now time.Time) time.Time {
	oldest := now
	// Nothing is from before the zero time, so Past returns the oldest kept report of each host.
	_, at := s.Past(time.Time{})
	for _, t := range at {
		if t.Before(oldest) {
			oldest = t
		}
	}
	if from.After(oldest) {
		return from
	}
	return oldest
}

// ended returns the end of the last row: as queried, but not after now.
func ended(to, now time.Time) time.Time {
	if to.IsZero() || to.After(now) {
		return now
	}
	return to
}

// used returns a grid of one row with the uses of the queried workers over all hosts, in the blocks
// that all hosts have in common; nil if there are none. It also updates h's flags on precision.
func (s *State) used(h *page.Heatmap, q *page.HeatmapQuery, reports []*api.JobReport) *page.Grid {
	var grids []*page.Grid
	for _, r := range reports {
		h.Exact = h.Exact && r.GetExact()
		h.SampledOneIn = max(h.SampledOneIn, r.GetSampledOneIn())
		rows := map[string]int{} // all in row 0, the others in row 1
		for _, u := range r.GetUses() {
			if !q.Of(u.GetWorker()) {
				rows[u.GetWorker()] = 1
			}
		}
		if len(r.GetBlocks()) > 0 && len(r.GetUses()) > 0 {
			grids = append(grids, gridOf(r, rows, 2))
		}
	}
	sum := &page.Grid{Firsts: page.CommonEdges(grids), Rows: make([][]page.Sums, 1)}
	for _, g := range grids {
		add(&sum.Rows[0], g.Regroup(sum.Firsts)[0])
	}
	if sum.Rows[0] == nil {
		return nil
	}
	return sum
}

// add adds a row to another of the same blocks, which may be nil and then becomes row itself. The
// caller must not use row afterwards.
func add(to *[]page.Sums, row []page.Sums) {
	if *to == nil {
		*to = row
		return
	}
	for b := range row {
		for p, n := range row[b] {
			(*to)[b][p] += n
		}
	}
}

// inUse joins each block without uses to the block before it, by dropping its edge. Unused blocks
// at the beginning are left out, so the heatmap may begin above key 0.
func inUse(firsts []uint64, sums [][]page.Sums) ([]uint64, [][]page.Sums) {
	var kept []uint64
	rows := make([][]page.Sums, len(sums))
	for b, first := range firsts {
		used := false
		for _, row := range sums {
			used = used || row != nil && row[b] != page.Sums{}
		}
		if !used {
			continue
		}
		kept = append(kept, first)
		for i, row := range sums {
			if row != nil {
				rows[i] = append(rows[i], row[b])
			}
		}
	}
	return kept, rows
}

// coarser joins groups of each neighbouring blocks, the last of which may be smaller. It consumes
// sums.
func coarser(firsts []uint64, sums [][]page.Sums, each int) ([]uint64, [][]page.Sums) {
	var kept []uint64
	rows := make([][]page.Sums, len(sums))
	for b := 0; b < len(firsts); b += each {
		kept = append(kept, firsts[b])
		for i, row := range sums {
			if row == nil {
				continue
			}
			// A view of the first block; add sums into it, so row is consumed.
			sum := row[b : b+1 : b+1]
			for _, more := range row[b+1 : min(b+each, len(row))] {
				add(&sum, []page.Sums{more})
			}
			rows[i] = append(rows[i], sum[0])
		}
	}
	return kept, rows
}

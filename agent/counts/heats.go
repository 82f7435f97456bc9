package counts

import (
	"github.com/psidecar/psidecar/page"
)

// A Heat is which worker used which keys in a stretch of time.
type Heat struct {
	Start, End int64 // nanoseconds since 1970
	Rows       [][]Sums
}

// Heats returns, for each interval that overlaps a stretch of time (nanoseconds
// since 1970; 0 for an open end), which keys were used, oldest first, all by the
// same blocks, and the first keys of those.
func (j *Locality) Heats(from, to int64) (heats []Heat, firsts []uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var grids []*page.Grid
	for _, in := range j.ring {
		if in.End < from || to != 0 && in.Start > to || in.Heat.Rows == nil {
			continue
		}
		grids = append(grids, &in.Heat)
		heats = append(heats, Heat{Start: in.Start, End: in.End})
	}
	firsts = page.CommonEdges(grids)
	for i, g := range grids {
		heats[i].Rows = g.Regroup(firsts)
	}
	return heats, firsts
}

// EachInterval calls f with each interval that is kept, oldest first. f must not
// keep it or change it, nor call the job.
func (j *Locality) EachInterval(f func(in *Interval)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, in := range j.ring {
		f(in)
	}
}

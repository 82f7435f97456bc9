package counts

import (
	"github.com/psidecar/psidecar/internal/page"
)

// A Heat says which worker used which keys in a stretch of time.
type Heat struct {
	Start, End int64    // nanoseconds since 1970
	Rows       [][]Sums // by worker and block
}

// Heats returns the heat of each interval that overlaps a stretch of time (nanoseconds since
// 1970; 0 for an open end), oldest first, and the first keys of the blocks, which are the same
// for all of them: those that all intervals' grids have in common.
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
	// Grids laid out at different times differ in resolution. Their common blocks have exact
	// sums in all of them.
	firsts = page.CommonEdges(grids)
	for i, g := range grids {
		heats[i].Rows = g.Regroup(firsts)
	}
	return heats, firsts
}

// EachInterval calls f with each interval, oldest first. It holds the job's lock meanwhile, so
// f must be quick, must not call the job, and must not keep or change the interval.
func (j *Locality) EachInterval(f func(in *Interval)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, in := range j.ring {
		f(in)
	}
}

package counts

import (
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
)

// A View is what happened in a stretch of time, summed up from intervals. It shares no memory
// with the Locality.
type View struct {
	Interval
	// Timestamps are those of the workers' newest steps, whatever the stretch.
	Timestamps []int32
	stepping   []bool // workers whose requests have been seen, whatever the stretch
}

// All returns the sums over all time, without heat, which the table has.
func (j *Locality) All() View {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := newView()
	v.merge(j.all)
	v.Start, v.End = j.all.Start, j.all.Start
	if len(j.ring) > 0 {
		v.End = j.ring[len(j.ring)-1].End
	}
	j.timestamps(&v)
	return v
}

// Between returns the sums from one time to another (nanoseconds since 1970; 0 for an open
// end), rounded outwards to whole intervals.
func (j *Locality) Between(from, to int64) View {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := newView()
	var grids []*page.Grid
	for _, in := range j.ring {
		if in.End < from || to != 0 && in.Start > to {
			continue
		}
		// Intervals are in order, so the first that overlaps has the earliest start.
		if v.Start == 0 {
			v.Start = in.Start
		}
		v.End = max(v.End, in.End)
		v.merge(in)
		if in.Heat.Rows != nil {
			grids = append(grids, &in.Heat)
		}
	}
	v.Heat = joined(grids)
	j.timestamps(&v)
	return v
}

// Recent returns the sums over the intervals of the last span, counted back from the last
// message.
func (j *Locality) Recent(span time.Duration) View {
	j.mu.Lock()
	end := int64(0)
	if len(j.ring) > 0 {
		end = j.ring[len(j.ring)-1].End
	}
	j.mu.Unlock()
	return j.Between(end-int64(span), 0)
}

// newView returns an empty view.
func newView() View { return View{Interval: Interval{Latency: new(history.Latency)}} }

// timestamps adds the workers' newest timestamps. The caller holds j.mu.
func (j *Locality) timestamps(v *View) {
	for _, p := range j.progress {
		v.Timestamps = append(v.Timestamps, p.timestamp)
	}
	v.stepping = j.stepping()
}

// stepping returns the workers whose steps have been seen. Those of other hosts make steps, too, and
// are not slow for having none here. The caller holds j.mu.
func (j *Locality) stepping() []bool {
	seen := make([]bool, len(j.all.Steps))
	for w, n := range j.all.Steps {
		seen[w] = n > 0
	}
	return seen
}

// merge adds an interval, without its heat and times.
func (v *View) merge(in *Interval) {
	for w, row := range in.Pairs {
		for s, p := range row {
			to := v.pair(w, s)
			to.ToServer += p.ToServer
			to.ToWorker += p.ToWorker
			to.Requests += p.Requests
		}
	}
	for w, n := range in.Steps {
		for w >= len(v.Steps) {
			v.Steps = append(v.Steps, 0)
		}
		v.Steps[w] += n
	}
	v.Latency.Merge(in.Latency)
	v.ByWorker = mergeEach(v.ByWorker, in.ByWorker)
	v.ByServer = mergeEach(v.ByServer, in.ByServer)
	v.Bytes += in.Bytes
	v.LeftHost += in.LeftHost
	v.Repeated += in.Repeated
	v.Messages += in.Messages
}

// mergeEach adds the latencies of each worker, or server; a nil entry has none.
func mergeEach(to, from []*history.Latency) []*history.Latency {
	for i, l := range from {
		for i >= len(to) {
			to = append(to, new(history.Latency))
		}
		if to[i] == nil {
			to[i] = new(history.Latency)
		}
		to[i].Merge(l)
	}
	return to
}

// joined adds up grids by the coarsest common blocks.
func joined(grids []*page.Grid) page.Grid {
	sum := page.Grid{Firsts: page.CommonEdges(grids)}
	for _, g := range grids {
		for w, row := range g.Regroup(sum.Firsts) {
			for w >= len(sum.Rows) {
				sum.Rows = append(sum.Rows, nil)
			}
			if row == nil {
				continue
			}
			if sum.Rows[w] == nil {
				sum.Rows[w] = row
				continue
			}
			for b := range row {
				for p := range row[b] {
					sum.Rows[w][b][p] += row[b][p]
				}
			}
		}
	}
	return sum
}

// Seconds returns the length of the view.
func (v *View) Seconds() float64 { return float64(v.End-v.Start) / 1e9 }

// stragglerShare is the fraction of the median worker's steps below which a worker lags.
const stragglerShare = 0.8

// Stragglers returns the workers that lag behind the median worker: with less than four fifths
// of its steps, and at least 3 fewer.
func (v *View) Stragglers() []int { return stragglers(v.Steps, v.stepping) }

// MedianSteps returns the steps of the median worker, the upper one of two.
func (v *View) MedianSteps() uint64 { return medianOf(v.Steps, v.stepping) }

// stragglers returns the workers that lag, given the steps of all, among those that are seen. Three steps of difference
// are needed, since in a short stretch a single one is a large share.
func stragglers(steps []uint64, seen []bool) (slow []int) {
	median := medianOf(steps, seen)
	for w, n := range steps {
		if w < len(seen) && seen[w] && float64(n) < stragglerShare*float64(median) && n+3 <= median {
			slow = append(slow, w)
		}
	}
	return slow
}

// medianOf returns the upper median of those that are seen, 0 of nothing.
func medianOf(steps []uint64, seen []bool) uint64 {
	var sorted []uint64
	for w, n := range steps {
		if w < len(seen) && seen[w] {
			sorted = append(sorted, n)
		}
	}
	if len(sorted) == 0 {
		return 0
	}
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

package counts

import (
	"slices"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/history"
)

// An Interval is what happened in a stretch of time.
type Interval struct {
	Start, End int64    // nanoseconds since 1970, of its first and last message
	Pairs      [][]Pair // [worker][server], rows may be short
	Heat       page.Grid
	Steps      []uint64         // by worker: rounds of pushes (of pulls where it pushes nothing)
	Latency    *history.Latency // of all requests
	ByWorker   []*history.Latency
	ByServer   []*history.Latency

	Bytes, LeftHost, Repeated, Messages uint64
}

func newInterval(at int64, firsts []uint64) *Interval {
	return &Interval{Start: at, End: at, Heat: page.Grid{Firsts: firsts}}
}

func (in *Interval) pair(worker, server int) *Pair {
	for worker >= len(in.Pairs) {
		in.Pairs = append(in.Pairs, nil)
	}
	for server >= len(in.Pairs[worker]) {
		in.Pairs[worker] = append(in.Pairs[worker], Pair{})
	}
	return &in.Pairs[worker][server]
}

func (in *Interval) count(bytes uint64, leftHost, repeat bool) {
	in.Messages++
	in.Bytes += bytes
	if leftHost {
		in.LeftHost += bytes
	}
	if repeat {
		in.Repeated += bytes
	}
}

func (in *Interval) stepped(worker int) {
	for worker >= len(in.Steps) {
		in.Steps = append(in.Steps, 0)
	}
	in.Steps[worker]++
}

func (in *Interval) took(worker, server int, nanos int64) {
	for worker >= len(in.ByWorker) {
		in.ByWorker = append(in.ByWorker, nil)
	}
	for server >= len(in.ByServer) {
		in.ByServer = append(in.ByServer, nil)
	}
	for _, l := range []**history.Latency{&in.Latency, &in.ByWorker[worker], &in.ByServer[server]} {
		if *l == nil {
			*l = new(history.Latency)
		}
		(*l).AddNanos(nanos)
	}
}

// thin makes room for one more interval: old intervals are joined with those before
// them, and intervals that are too old are dropped.
func (j *Locality) thin(at int64) {
	if i := len(j.ring) - j.opts.Fine; j.opts.Coarse > 0 && i > 0 {
		old, next := j.ring[i-1], j.ring[i]
		if next.End-old.Start <= int64(j.opts.Coarse) {
			old.extend(next)
			j.ring = slices.Delete(j.ring, i, i+1)
		}
	}
	gone := max(len(j.ring)-j.opts.Intervals+1, 0)
	for j.opts.Kept > 0 && gone < len(j.ring) && j.ring[gone].End < at-int64(j.opts.Kept) {
		gone++
	}
	j.ring = slices.Delete(j.ring, 0, gone)
}

// extend adds what happened in the interval after this one.
func (in *Interval) extend(next *Interval) {
	sum := View{Interval: *in}
	if sum.Latency == nil {
		sum.Latency = new(history.Latency)
	}
	sum.merge(next)
	*in = sum.Interval
	in.End = max(in.End, next.End)
	switch {
	case next.Heat.Rows == nil:
	case in.Heat.Rows == nil:
		in.Heat = next.Heat
	default:
		in.Heat = joined([]*page.Grid{&in.Heat, &next.Heat})
	}
}

package counts

import (
	"slices"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
)

// An Interval is what a job did in a stretch of time. Slices by worker or server are as long as
// the highest number seen needs. Guarded by Locality.mu.
type Interval struct {
	Start, End int64              // time of its first and last message, in nanoseconds since 1970
	Pairs      [][]Pair           // [worker][server], rows may be short
	Heat       page.Grid          // sums by worker and block of keys
	Steps      []uint64           // by worker: rounds of pushes, or of pulls where it pushes nothing
	Latency    *history.Latency   // of all requests
	ByWorker   []*history.Latency // nil entries: no answers
	ByServer   []*history.Latency

	// Of all messages, as in Totals.
	Bytes, LeftHost, Repeated, Messages uint64
}

// newInterval returns an empty interval that begins at a time, with a grid of the given blocks.
func newInterval(at int64, firsts []uint64) *Interval {
	return &Interval{Start: at, End: at, Heat: page.Grid{Firsts: firsts}}
}

// pair returns the entry of a pair, growing the matrix as needed. The pointer is valid until
// the next call.
func (in *Interval) pair(worker, server int) *Pair {
	for worker >= len(in.Pairs) {
		in.Pairs = append(in.Pairs, nil)
	}
	for server >= len(in.Pairs[worker]) {
		in.Pairs[worker] = append(in.Pairs[worker], Pair{})
	}
	return &in.Pairs[worker][server]
}

// count counts a message.
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

// stepped counts n steps of a worker.
func (in *Interval) stepped(worker int, n uint64) {
	for worker >= len(in.Steps) {
		in.Steps = append(in.Steps, 0)
	}
	in.Steps[worker] += n
}

// took records the latency of a request under all, its worker and its server.
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

// thin makes room for one more interval. The interval that just left the newest Fine ones is
// joined with the one before it, up to a length of Coarse; intervals older than Kept, or beyond
// Intervals, are dropped. At most one pair is joined in each call, so the cost is even. The
// caller holds j.mu.
func (j *Locality) thin(at int64) {
	if i := len(j.ring) - j.opts.Fine; j.opts.Coarse > 0 && i > 0 {
		old, next := j.ring[i-1], j.ring[i]
		// Otherwise old is as long as it may get, and the next one starts a new stretch.
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

// extend adds the interval that follows this one. Grids are joined by the blocks that both
// have; blocks nest, so no sum is lost, only resolution.
func (in *Interval) extend(next *Interval) {
	// merge adds to slices in place, so in's own are reused.
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

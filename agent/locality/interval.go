package locality

import (
	"math/bits"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/psidecar/psidecar/agent/counts"
)

// An Interval is what happened in a stretch of time.
type Interval struct {
	Start, End int64    // nanoseconds since 1970, of its first and last message
	Pairs      [][]Pair // [worker][server], rows may be short
	Heat       counts.Grid
	Steps      []uint64 // by worker: rounds of pushes (of pulls where it pushes nothing)
	Latency    *Latency // of all requests
	ByWorker   []*Latency
	ByServer   []*Latency

	Bytes, LeftHost, Repeated, Messages uint64
}

func newInterval(at int64, firsts []uint64) *Interval {
	return &Interval{Start: at, End: at, Heat: counts.Grid{Firsts: firsts}}
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
	for _, l := range []**Latency{&in.Latency, &in.ByWorker[worker], &in.ByServer[server]} {
		if *l == nil {
			*l = new(Latency)
		}
		(*l).add(nanos)
	}
}

// thin makes room for one more interval: what has become old is joined with what
// is before it, and what is too old is forgotten.
func (j *Job) thin(at int64) {
	if i := len(j.ring) - j.opts.Fine; j.opts.Coarse > 0 && i > 0 {
		old, next := j.ring[i-1], j.ring[i]
		if next.End-old.Start <= int64(j.opts.Coarse) {
			old.join(next)
			j.ring = slices.Delete(j.ring, i, i+1)
		}
	}
	gone := max(len(j.ring)-j.opts.Intervals+1, 0)
	for j.opts.Kept > 0 && gone < len(j.ring) && j.ring[gone].End < at-int64(j.opts.Kept) {
		gone++
	}
	j.ring = slices.Delete(j.ring, 0, gone)
}

// join adds what happened in the interval after this one.
func (in *Interval) join(next *Interval) {
	sum := View{Interval: *in}
	if sum.Latency == nil {
		sum.Latency = new(Latency)
	}
	sum.merge(next)
	*in = sum.Interval
	in.End = max(in.End, next.End)
	switch {
	case next.Heat.Rows == nil:
	case in.Heat.Rows == nil:
		in.Heat = next.Heat
	default:
		in.Heat = joined([]*counts.Grid{&in.Heat, &next.Heat})
	}
}

// Latency is a distribution of durations. Few are kept one by one, more in a
// histogram, so that the many distributions of a large job stay small.
type Latency struct {
	few  []int64 // microseconds
	hist *hdrhistogram.Histogram
}

const (
	fewLatencies   = 64
	highestLatency = int64(10 * time.Minute / time.Microsecond)
)

func (l *Latency) add(nanos int64) { l.record(max(nanos/1000, 0), 1) }

func (l *Latency) record(micros, n int64) {
	micros = min(micros, highestLatency)
	if l.hist == nil && len(l.few)+int(n) <= fewLatencies {
		for range n {
			l.few = append(l.few, micros)
		}
		return
	}
	l.grow()
	if err := l.hist.RecordValues(micros, n); err != nil {
		panic(err) // values are limited above to what it takes
	}
}

// Record adds n durations of so many microseconds.
func (l *Latency) Record(micros, n int64) { l.record(max(micros, 0), n) }

// Bars returns the distribution in short, to be put together elsewhere by
// Record: rising durations in microseconds, right to 2%, and how many there are
// of each. l may be nil.
func (l *Latency) Bars() (micros, counts []uint64) {
	if l == nil {
		return nil, nil
	}
	for _, bar := range l.Histogram().Distribution() {
		if bar.Count == 0 {
			continue
		}
		v := coarse(uint64(bar.From+bar.To) / 2)
		if last := len(micros) - 1; last >= 0 && micros[last] == v {
			counts[last] += uint64(bar.Count)
			continue
		}
		micros, counts = append(micros, v), append(counts, uint64(bar.Count))
	}
	return micros, counts
}

// coarse returns the middle of the values that share the highest six bits.
func coarse(v uint64) uint64 {
	shift := max(bits.Len64(v)-6, 0)
	return v>>shift<<shift + 1<<shift>>1
}

// grow turns to a histogram of 1 microsecond to 10 minutes, right to 1%.
func (l *Latency) grow() {
	if l.hist != nil {
		return
	}
	l.hist = hdrhistogram.New(1, highestLatency, 2)
	for _, v := range l.few {
		if err := l.hist.RecordValue(v); err != nil {
			panic(err)
		}
	}
	l.few = nil
}

// Merge adds the durations of m, which may be nil.
func (l *Latency) Merge(m *Latency) {
	if m == nil {
		return
	}
	for _, v := range m.few {
		l.record(v, 1)
	}
	if m.hist != nil {
		l.grow()
		l.hist.Merge(m.hist)
	}
}

// mean returns the mean duration and how many there are; l may be nil.
func (l *Latency) mean() (time.Duration, uint64) {
	switch {
	case l == nil || l.hist == nil && len(l.few) == 0:
		return 0, 0
	case l.hist == nil:
		sum := int64(0)
		for _, v := range l.few {
			sum += v
		}
		return time.Duration(sum) * time.Microsecond / time.Duration(len(l.few)), uint64(len(l.few))
	}
	return time.Duration(l.hist.Mean() * 1000), uint64(l.hist.TotalCount())
}

// Histogram returns the distribution in microseconds; l may be nil.
func (l *Latency) Histogram() *hdrhistogram.Histogram {
	var sum Latency
	sum.grow()
	sum.Merge(l)
	return sum.hist
}

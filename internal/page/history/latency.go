package history

import (
	"math/bits"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency is a distribution of durations. The first few are kept one by one, more in a
// histogram, because a large job has very many distributions and most of them are small. It is
// not safe for concurrent use.
type Latency struct {
	few  []int64 // microseconds
	hist *hdrhistogram.Histogram
}

// How many durations are kept one by one, and the longest that is recorded, in microseconds.
const (
	fewLatencies   = 64
	highestLatency = int64(10 * time.Minute / time.Microsecond)
)

// AddNanos adds a duration in nanoseconds.
func (l *Latency) AddNanos(nanos int64) { l.record(max(nanos/1000, 0), 1) }

// record adds n durations, limited to the histogram's range.
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

// Record adds n durations of micros microseconds.
func (l *Latency) Record(micros, n int64) { l.record(max(micros, 0), n) }

// Bars returns the distribution in compact form, to be rebuilt elsewhere by Record: ascending
// durations in microseconds, precise to 2%, and their numbers. l may be nil.
func (l *Latency) Bars() (micros, counts []uint64) {
	if l == nil {
		return nil, nil
	}
	for _, bar := range l.Histogram().Distribution() {
		if bar.Count == 0 {
			continue
		}
		// Coarser than the histogram: a report has many distributions, and bars that meet in
		// one value are joined.
		v := coarse(uint64(bar.From+bar.To) / 2)
		if last := len(micros) - 1; last >= 0 && micros[last] == v {
			counts[last] += uint64(bar.Count)
			continue
		}
		micros, counts = append(micros, v), append(counts, uint64(bar.Count))
	}
	return micros, counts
}

// coarse returns the middle of the values that share v's six highest bits.
func coarse(v uint64) uint64 {
	shift := max(bits.Len64(v)-6, 0)
	return v>>shift<<shift + 1<<shift>>1
}

// grow switches to a histogram from 1 microsecond to 10 minutes, precise to 1%.
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

// Mean returns the mean duration and the number of durations; l may be nil.
func (l *Latency) Mean() (time.Duration, uint64) {
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

// Histogram returns a copy of the distribution in microseconds; l may be nil.
func (l *Latency) Histogram() *hdrhistogram.Histogram {
	var sum Latency
	sum.grow()
	sum.Merge(l)
	return sum.hist
}

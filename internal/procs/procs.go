// Package procs keeps GOMAXPROCS as small as a process's load allows.
//
// A proxy rests between messages. With several processors of the Go runtime, each
// message wakes a thread that looks for work, and often a second one that finds none;
// with one it wakes one. So a process begins with one, and gets another when
// goroutines wait for it.
package procs

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Period is how often [Run] looks.
const Period = 100 * time.Millisecond

// quietPeriods is how many periods in a row must do with fewer processors before
// there are fewer.
const quietPeriods = 10

// Load is what goroutines did in a period, each in processors: 1 is one all the time.
type Load struct {
	Running float64 // processor time of the process
	Waiting float64 // goroutines that could run and did not, on average
}

// Policy decides on a number of processors. The zero value is ready.
type Policy struct {
	quiet int // periods in a row that would have done with fewer
}

// Next returns how many processors there should be, from 1 to most, where there are
// procs and that was the load.
func (p *Policy) Next(procs, most int, l Load) int {
	switch {
	case procs > most:
		p.quiet = 0
		return most
	case l.Waiting > 0.5 || l.Running > 0.8*float64(procs):
		p.quiet = 0
		return min(most, 2*procs)
	case procs > 1 && l.Running+l.Waiting < 0.4*float64(procs-1):
		if p.quiet++; p.quiet >= quietPeriods {
			p.quiet = 0
			return procs - 1
		}
	default:
		p.quiet = 0
	}
	return procs
}

var runs atomic.Bool // Run does

// Run sets GOMAXPROCS by the load until ctx is done, and then as it was. Where the
// environment says GOMAXPROCS, or another Run is under way, it does nothing. It
// returns nil.
func Run(ctx context.Context) error {
	if os.Getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) == 1 || !runs.CompareAndSwap(false, true) {
		return nil
	}
	defer runs.Store(false)
	defer runtime.SetDefaultGOMAXPROCS()
	var p Policy
	m := newMeter()
	procs := runtime.GOMAXPROCS(1)
	procs, most := 1, procs
	t := time.NewTicker(Period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		next := p.Next(procs, most, m.readLoad())
		if next == procs {
			continue
		}
		if next > procs { // limits of the cgroup may have changed
			runtime.SetDefaultGOMAXPROCS()
			most = runtime.GOMAXPROCS(0)
			next = min(next, most)
		}
		procs = next
		runtime.GOMAXPROCS(procs)
	}
}

// meter measures the load between two reads.
type meter struct {
	at     time.Time
	cpu    time.Duration
	sample [1]metrics.Sample
	counts []uint64 // of waits, by the histogram's buckets
}

func newMeter() *meter {
	m := &meter{sample: [1]metrics.Sample{{Name: "/sched/latencies:seconds"}}}
	m.readLoad()
	return m
}

func (m *meter) readLoad() (l Load) {
	var t unix.Timespec
	now, cpu := time.Now(), m.cpu
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) == nil {
		cpu = time.Duration(t.Nano())
	}
	metrics.Read(m.sample[:])
	waited := 0.0
	if m.sample[0].Value.Kind() == metrics.KindFloat64Histogram {
		h := m.sample[0].Value.Float64Histogram()
		waited = waitedSince(m.counts, h)
		m.counts = append(m.counts[:0], h.Counts...)
	}
	if passed := now.Sub(m.at).Seconds(); passed > 0 {
		l = Load{Running: (cpu - m.cpu).Seconds() / passed, Waiting: waited / passed}
	}
	m.at, m.cpu = now, cpu
	return l
}

// waitedSince returns the sum of the waits in a histogram beyond those in before, in
// seconds: each counts as its bucket's lower bound, which is within a factor of two.
func waitedSince(before []uint64, h *metrics.Float64Histogram) (sum float64) {
	for i, n := range h.Counts {
		if i < len(before) {
			n -= before[i]
		}
		if low := h.Buckets[i]; n > 0 && !math.IsInf(low, 0) {
			sum += float64(n) * low
		}
	}
	return sum
}

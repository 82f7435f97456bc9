package agent

import (
	"cmp"
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A budget bounds the processor time of a kind of work to one part in share of a core, averaged
// over time, with bursts of up to burst: a leaky bucket. The zero value with a share has its
// whole burst left. It is not safe for concurrent use.
type budget struct {
	share int
	spent time.Duration // time used and not yet earned back; work may start while it is below burst
	at    time.Time     // of the last call of allows
}

// burst is how much work may be done at once.
const burst = 100 * time.Millisecond

// allows reports whether work may start now. One piece of work may exceed the budget; the next
// then has to wait for longer.
func (b *budget) allows(now time.Time) bool {
	// Time earns budget back, down to none spent: an idle hour allows no more than one burst.
	if !b.at.IsZero() {
		b.spent = max(b.spent-now.Sub(b.at)/time.Duration(b.share), 0)
	}
	b.at = now
	return b.spent < burst
}

// spend records work that was done.
func (b *budget) spend(took time.Duration) { b.spent += took }

// A timing measures the processor time of a piece of work. It locks the goroutine to its thread
// until end: elapsed time would count other processes' work on a busy host.
type timing struct{ before time.Duration }

// beginTiming starts to measure. Each call needs one of end, on the same goroutine.
func beginTiming() timing {
	runtime.LockOSThread()
	return timing{threadTime()}
}

// end returns the processor time since beginTiming and releases the thread.
func (t timing) end() time.Duration {
	defer runtime.UnlockOSThread()
	return threadTime() - t.before
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return time.Duration(ts.Nano())
}

// A pace says how often a task is repeated: every least or, if that took more than its share of
// --cpu-budget, so rarely that it does not. It belongs to the task's goroutine.
type pace struct {
	least time.Duration
	most  time.Duration // 0: longestTurn
	share float64       // of the budget
	took  time.Duration // moving average
}

// longestTurn bounds the time between two turns of a loop; see standsFor.
const longestTurn = standsFor / 2

// paced does a turn of a task, measures its CPU time, and returns the pause until the next.
func (a *Agent) paced(p *pace, turn func()) time.Duration {
	cost := beginTiming()
	turn()
	took := cost.end()
	a.loops.Add(int64(took))
	p.took += (took - p.took) / 4
	return p.pause(math.Float64frombits(a.allowed.Load()))
}

// pause returns the time between two turns within a budget in percent of a core; 0: none is set.
func (p *pace) pause(budget float64) time.Duration {
	if budget <= 0 {
		return p.least
	}
	return max(p.least, min(time.Duration(float64(p.took)/(budget/100*p.share)), cmp.Or(p.most, longestTurn)))
}

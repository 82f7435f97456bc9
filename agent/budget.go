package agent

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A budget bounds the processor time that a kind of work takes: one part in
// share of a core over time, and burst at once. The zero value but for share
// has all of burst saved. It is not safe for use by several goroutines.
type budget struct {
	share int
	spent time.Duration // and not yet made up for; the work may go on below burst
	at    time.Time     // of the last call of allows
}

// burst is the time that work may take at once.
const burst = time.Second

// allows reports whether there is room for more work now.
func (b *budget) allows(now time.Time) bool {
	if !b.at.IsZero() {
		b.spent = max(b.spent-now.Sub(b.at)/time.Duration(b.share), 0)
	}
	b.at = now
	return b.spent < burst
}

// spend notes work that was done.
func (b *budget) spend(took time.Duration) { b.spent += took }

// A timing measures the processor time of the calling goroutine's thread, which
// it keeps until the end: on a busy host the clock would say much more.
type timing struct{ before time.Duration }

func beginTiming() timing {
	runtime.LockOSThread()
	return timing{threadTime()}
}

func (t timing) end() time.Duration {
	defer runtime.UnlockOSThread()
	return threadTime() - t.before
}

// threadTime is the processor time that the calling thread has taken.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return time.Duration(ts.Nano())
}

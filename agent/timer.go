package agent

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf"
)

// timer finds out how much CPU time of the reading thread goes into keys. It
// looks at the clock for one in timerEach records, picked at random, since
// records come in a rhythm. Counting that was put off is rare and takes long; all of
// it is measured, on whatever thread it is made up for.
type timer struct {
	keys   atomic.Int64 // nanoseconds, of all records by estimate, and late
	late   atomic.Int64 // nanoseconds of counting that was put off
	random uint32       // the reader's alone
	look   int64        // what looking at the clock takes itself; the reader's alone
}

const timerEach = 16

// handle has a record handled. It is called on one thread.
func (t *timer) handle(r *bpf.Record, by func(*bpf.Record)) {
	t.random = t.random*1664525 + 1013904223
	if t.random>>16%timerEach != 0 || !isOfKeys(r) {
		by(r)
		return
	}
	if t.look == 0 {
		t.calibrate()
	}
	late := t.late.Load()
	start := threadNanos()
	by(r)
	took := threadNanos() - start - t.look
	t.keys.Add(timerEach * max(took-(t.late.Load()-late), 0))
}

// timed does counting that was put off. It may be called on any thread.
func (t *timer) timed(work func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadNanos()
	work()
	took := threadNanos() - start
	t.late.Add(took)
	t.keys.Add(took)
}

// calibrate finds out what looking at the clock takes, at least.
func (t *timer) calibrate() {
	t.look = 1 << 20
	for range 100 {
		start := threadNanos()
		t.look = min(t.look, max(threadNanos()-start, 1))
	}
}

// threadNanos is the CPU time that the calling thread has taken.
func threadNanos() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return ts.Nano()
}

// isOfKeys reports whether the record would not be there, or would mean less
// work, had its message not been sampled: keys are counted at its end.
func isOfKeys(r *bpf.Record) bool {
	switch r.Kind {
	case bpf.KindKeys, bpf.KindKeyRun, bpf.KindLens:
		return true
	case bpf.KindEnd:
		return r.Has(bpf.Sampled)
	}
	return false
}

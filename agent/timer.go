package agent

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf"
)

// A timer measures how much CPU time of the reading thread goes into keys. It times one in
// timerEach records, chosen at random, because records come in a rhythm that a fixed choice
// could be in step with. Counting that the table put off is rare and slow, so all of it is
// measured, on whichever thread it happens, and kept out of the records that triggered it.
type timer struct {
	keys   atomic.Int64 // nanoseconds: estimate over all records, plus late
	late   atomic.Int64 // nanoseconds of counting that was put off
	random uint32       // state of the generator; belongs to the reading thread
	look   int64        // cost of reading the clock, in nanoseconds; belongs to the reading thread
}

// timerEach is one in how many records is timed. Reading the thread clock is a system call.
const timerEach = 16

// handle passes a record to by and perhaps times it. All calls are on one thread.
func (t *timer) handle(r *bpf.Record, by func(*bpf.Record)) {
	t.random = t.random*1664525 + 1013904223
	if t.random>>16%timerEach != 0 || !isOfKeys(r) {
		by(r)
		return
	}
	if t.look == 0 {
		t.calibrate()
	}
	// Put-off work that this record triggers is measured by timed, in full; scaled up here as
	// well, it would count 17 times.
	late := t.late.Load()
	start := threadNanos()
	by(r)
	took := threadNanos() - start - t.look
	t.keys.Add(timerEach * max(took-(t.late.Load()-late), 0))
}

// timed does work that was put off and measures it. It may be called on any thread.
func (t *timer) timed(work func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadNanos()
	work()
	took := threadNanos() - start
	t.late.Add(took)
	t.keys.Add(took)
}

// calibrate measures the least cost of reading the clock.
func (t *timer) calibrate() {
	// Any real value is smaller.
	t.look = 1 << 20
	for range 100 {
		start := threadNanos()
		t.look = min(t.look, max(threadNanos()-start, 1))
	}
}

// threadNanos returns the CPU time of the calling thread.
func threadNanos() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return ts.Nano()
}

// isOfKeys reports whether the record exists, or is expensive, because its message was sampled.
// Keys are counted at the end of a message.
func isOfKeys(r *bpf.Record) bool {
	switch r.Kind {
	case bpf.KindKeys, bpf.KindKeyRun, bpf.KindLens:
		return true
	case bpf.KindEnd:
		return r.Has(bpf.Sampled)
	}
	return false
}

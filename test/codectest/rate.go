// Package codectest measures codecs for values beside a plain copy of the same values. A
// rate alone says little on a machine that others share; the ratio to copying, taken in the
// same run and by turns, is what test/MEASURED.md reports and what a change of a codec is
// judged by. Benchmarks of the codecs call it.
package codectest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// MiB lists the sizes of values that codecs are measured with: one that fits into the
// processor's caches and one that does not.
var MiB = []int{4, 64}

// BesideCopy copies values and calls step with them, in turns, so that both see the same
// machine. Several values must have one length; each turn takes the next. It reports both
// rates in bytes of values per second of this thread's processor time, which other
// processes disturb least ("GB/s", "copy-GB/s"), and their ratio ("of-copy"). Bytes are
// those that go in when encoding and come out when decoding, whatever their kind: a ratio
// of one half means that encoding takes as long as copying the values twice.
func BesideCopy(b *testing.B, values [][]byte, step func(values []byte)) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	copied := make([]byte, len(values[0]))
	// Once before the clock runs: pages are mapped, and the codec's memory is
	// allocated.
	for _, v := range values {
		copy(copied, v)
		step(v)
	}
	var copying, stepping time.Duration
	turn := 0
	b.ReportAllocs()
	for b.Loop() {
		v := values[turn%len(values)]
		turn++
		start := processorTime(b)
		copy(copied, v)
		middle := processorTime(b)
		step(v)
		stepping += processorTime(b) - middle
		copying += middle - start
	}
	rate := func(d time.Duration) float64 { return float64(len(copied)) * float64(b.N) / d.Seconds() / 1e9 }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rate(stepping), "GB/s")
	b.ReportMetric(rate(copying), "copy-GB/s")
	b.ReportMetric(rate(stepping)/rate(copying), "of-copy")
}

// processorTime is the processor time that this thread has used. The caller has locked
// itself to the thread.
func processorTime(b *testing.B) time.Duration {
	var t unix.Timespec
	require.NoError(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

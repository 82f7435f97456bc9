// Package codectest measures codecs for values. In go a codec's step and the
// values that it is for; out comes its rate beside that of a plain copy of the
// same values. Benchmarks of the codecs call it.
package codectest

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// MiB are the sizes of values that codecs are measured with: one that a
// processor's caches hold, and one that they do not.
var MiB = []int{4, 64}

// BesideCopy copies values and calls step with them, in turns, so that both see
// the same machine; of several values, which have one length, each turn takes
// the next. It reports both rates, in bytes of values a second of the
// processor's time, which other processes disturb least ("GB/s", "copy-GB/s"),
// and step's by that of copying ("of-copy"). Bytes are those that go in when
// encoding and come out when decoding, whatever their kind: half of copying's
// rate means that encoding takes as long as copying the values twice.
func BesideCopy(b *testing.B, values [][]byte, step func(values []byte)) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	copied := make([]byte, len(values[0]))
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

// processorTime is what this thread has used.
func processorTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

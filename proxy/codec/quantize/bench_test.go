package quantize

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// processorTime is what this thread has used.
func processorTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// besideCopy copies the values and calls step, in turns, so that both see the
// same machine, and reports rates in bytes of values a second of the processor's
// time, which other processes disturb least, and their ratio.
func besideCopy(b *testing.B, values []byte, step func()) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	copied := make([]byte, len(values))
	copy(copied, values)
	step()
	var copying, stepping time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := processorTime(b)
		copy(copied, values)
		middle := processorTime(b)
		step()
		stepping += processorTime(b) - middle
		copying += middle - start
	}
	rate := func(d time.Duration) float64 { return float64(len(values)) * float64(b.N) / d.Seconds() / 1e9 }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(rate(stepping), "GB/s")
	b.ReportMetric(rate(copying), "copy-GB/s")
	b.ReportMetric(rate(stepping)/rate(copying), "of-copy")
}

func BenchmarkQuantize(b *testing.B) {
	for _, mib := range []int{4, 64} {
		values := bytesOf(element.Float32, normal(rand.New(rand.NewPCG(1, 1)), mib<<18, 1))
		for _, bits := range []int{1, 4, 8} {
			c := Config{Bits: bits, Bucket: 512}
			wire, _ := c.Append(nil, element.Float32, values, 1)
			var got []byte
			b.Run(fmt.Sprintf("encode/%dMiB/%dbits", mib, bits), func(b *testing.B) {
				besideCopy(b, values, func() { wire, _ = c.Append(wire[:0], element.Float32, values, 1) })
			})
			b.Run(fmt.Sprintf("decode/%dMiB/%dbits", mib, bits), func(b *testing.B) {
				besideCopy(b, values, func() {
					var err error
					if got, _, err = Decode(got[:0], element.Float32, len(values)/4, wire); err != nil {
						b.Fatal(err)
					}
				})
			})
		}
	}
}

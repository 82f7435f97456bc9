package threshold

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// opposites are two gradients of the given size in MiB, of which one is the
// other's negative. Pushed in turns, with a threshold that stays, each push
// sends what the first did: what was left cancels out.
func opposites(kind element.Kind, mib int) [2][]byte {
	rng := rand.New(rand.NewPCG(1, 1))
	g := [2][]byte{make([]byte, mib<<20), make([]byte, mib<<20)}
	for i := range (mib << 20) / kind.Size() {
		v := rng.NormFloat64()
		kind.Put(g[0], i, v)
		kind.Put(g[1], i, -v)
	}
	return g
}

// unlike are two float32 gradients that have nothing in common.
func unlike(mib int) [2][]byte {
	g := opposites(element.Float32, mib)
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range len(g[1]) / 4 {
		element.Float32.Put(g[1], i, rng.NormFloat64())
	}
	return g
}

// besideCopy copies the gradients and calls step with them, in turns, so that
// both see the same machine. It reports rates in bytes of gradient a second of
// the processor's time, which other processes disturb least, and their ratio.
func besideCopy(b *testing.B, gradients [2][]byte, step func(g []byte)) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	copied := make([]byte, len(gradients[0]))
	for _, g := range gradients {
		copy(copied, g)
		step(g)
	}
	var copying, stepping time.Duration
	turn := 0
	b.ReportAllocs()
	for b.Loop() {
		g := gradients[turn%2]
		turn++
		start := processorTime(b)
		copy(copied, g)
		middle := processorTime(b)
		step(g)
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

// BenchmarkEncode is a push from gradient to wire form, with error feedback and
// a threshold that is not renewed: 999 of 1000 pushes with the default
// lifespan.
func BenchmarkEncode(b *testing.B) {
	for _, c := range []struct {
		kind     element.Kind
		mib      int
		sparsity float64
		exact    bool
	}{
		{element.Float32, 4, 0.95, false},
		{element.Float32, 4, 0.99, false},
		{element.Float32, 4, 0.99, true},
		{element.Float32, 64, 0.95, false},
		{element.Float32, 64, 0.99, false},
		{element.Float32, 64, 0.99, true},
		{element.Float64, 4, 0.99, false},
		{element.Float16, 4, 0.99, false},
		{element.BFloat16, 4, 0.99, false},
	} {
		name := fmt.Sprintf("%v/%dMiB/%g", c.kind, c.mib, c.sparsity)
		if c.exact {
			name += "/exact"
		}
		b.Run(name, func(b *testing.B) {
			benchmarkEncode(b, opposites(c.kind, c.mib), c.kind, Config{Sparsity: c.sparsity, Lifespan: 1 << 30, Exact: c.exact})
		})
	}
}

// BenchmarkEncodeRenewing is a push that renews the threshold: with a lifespan
// of 1 each does.
func BenchmarkEncodeRenewing(b *testing.B) {
	for _, mib := range []int{4, 64} {
		b.Run(fmt.Sprintf("%dMiB/0.99", mib), func(b *testing.B) {
			benchmarkEncode(b, unlike(mib), element.Float32, Config{Sparsity: 0.99, Lifespan: 1})
		})
	}
}

func benchmarkEncode(b *testing.B, gradients [2][]byte, kind element.Kind, c Config) {
	l, err := NewLayer(kind, len(gradients[0])/kind.Size(), c)
	if err != nil {
		b.Fatal(err)
	}
	var w Workspace
	var out sparse.Vector
	var wire []byte
	besideCopy(b, gradients, func(g []byte) {
		if err := l.Compress(&w, &out, g); err != nil {
			b.Fatal(err)
		}
		wire = out.Append(wire[:0])
	})
	b.ReportMetric(float64(len(gradients[0]))/float64(len(wire)), "times-fewer")
}

// BenchmarkDecode is the way from the wire form to the whole gradient.
func BenchmarkDecode(b *testing.B) {
	for _, mib := range []int{4, 64} {
		for _, sparsity := range []float64{0.95, 0.99} {
			b.Run(fmt.Sprintf("float32/%dMiB/%g", mib, sparsity), func(b *testing.B) { benchmarkDecode(b, mib, sparsity) })
		}
	}
}

func benchmarkDecode(b *testing.B, mib int, sparsity float64) {
	gradients := opposites(element.Float32, mib)
	l, err := NewLayer(element.Float32, len(gradients[0])/4, Config{Sparsity: sparsity, Lifespan: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	var w Workspace
	var out, got sparse.Vector
	if err := l.Compress(&w, &out, gradients[0]); err != nil {
		b.Fatal(err)
	}
	wire := out.Append(nil)
	whole := make([]byte, len(gradients[0]))
	besideCopy(b, gradients, func([]byte) {
		if _, err := got.Decode(wire, out.N); err != nil {
			b.Fatal(err)
		}
		got.Expand(whole)
	})
}

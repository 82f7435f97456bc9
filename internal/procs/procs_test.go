package procs

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		name        string
		procs, most int
		load        []Load
		want        []int
	}{
		{"rest", 1, 4, []Load{{0.1, 0}, {0.3, 0.1}}, []int{1, 1}},
		{"goroutines wait", 1, 4, []Load{{0.5, 0.6}, {1, 3}, {3, 9}}, []int{2, 4, 4}},
		{"all are busy", 1, 3, []Load{{0.9, 0}, {1.9, 0}}, []int{2, 3}},
		{"one would do, but not for long", 2, 4, []Load{{0.1, 0}, {0.1, 0}, {0.7, 0}, {0.1, 0}}, []int{2, 2, 2, 2}},
		{"fewer are allowed", 4, 2, []Load{{3, 0}}, []int{2}},
		{"what is enough stays", 2, 4, []Load{{0.5, 0.1}, {1.5, 0.4}}, []int{2, 2}},
	} {
		var p Policy
		procs := c.procs
		for i, l := range c.load {
			if procs = p.Next(procs, c.most, l); procs != c.want[i] {
				t.Errorf("%s, period %d: %d processors, want %d", c.name, i, procs, c.want[i])
			}
		}
	}
	var p Policy
	procs := 3
	for range 2 * quietPeriods {
		procs = p.Next(procs, 4, Load{})
	}
	if procs != 1 {
		t.Errorf("%d processors after a long rest, want 1", procs)
	}
}

// What goroutines wait is measured: many that are busy at once raise the number of
// processors, and without them it falls again.
func TestRun(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	before := runtime.GOMAXPROCS(0)
	if before < 2 {
		require.Missing(t, "GOMAXPROCS is %d, and there is nothing to choose", before)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { Run(ctx) })
	until(t, 1)
	var rest atomic.Bool
	for range 4 {
		wg.Go(func() {
			for n := 0; !rest.Load(); n++ {
			}
		})
	}
	until(t, 2)
	rest.Store(true)
	until(t, 1)
	cancel()
	wg.Wait()
	if after := runtime.GOMAXPROCS(0); after != before {
		t.Errorf("%d processors are left, there were %d", after, before)
	}
}

func until(t *testing.T, procs int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if n := runtime.GOMAXPROCS(0); n == procs || procs > 1 && n > 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("GOMAXPROCS is %d after a minute, want %d", runtime.GOMAXPROCS(0), procs)
		}
	}
}

func TestWaitedSince(t *testing.T) {
	h := &metrics.Float64Histogram{Counts: []uint64{5, 3, 2}, Buckets: []float64{math.Inf(-1), 0.25, 0.5, 1}}
	if got := waitedSince(nil, h); got != 3*0.25+2*0.5 {
		t.Errorf("%v s", got)
	}
	if got := waitedSince([]uint64{5, 1, 2}, h); got != 2*0.25 {
		t.Errorf("%v s since", got)
	}
}

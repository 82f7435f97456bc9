package life

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// mayHang is how long a job may make no step.
	mayHang = 10 * time.Second
	// mayCrawl is the same where processes of the fleet wait for a processor.
	mayCrawl = 90 * time.Second
)

// patience is a clock that stands still while a process of the fleet waits for a processor:
// what is slow then does not hang. It keeps slow machines from failing and fast ones from
// waiting long.
type patience struct{ spare atomic.Int64 }

// watch makes the clock go until the context ends, by the pressure of the cgroup in which the
// whole fleet runs. If the kernel does not tell it, it is an ordinary clock.
func (p *patience) watch(ctx context.Context, t testing.TB, cgroup string) {
	file := filepath.Join(cgroup, "cpu.pressure")
	pressed, err := pressure(file)
	if err != nil {
		t.Logf("no pressure of the processors is known, hangs are told by the clock alone: %v", err)
	}
	for last := time.Now(); pause(ctx, 250*time.Millisecond); {
		passed := time.Since(last)
		last = last.Add(passed)
		if now, err := pressure(file); err == nil {
			passed -= now - pressed
			pressed = now
		}
		p.spare.Add(int64(max(0, passed)))
	}
}

// now returns for how long the fleet had a processor to spare.
func (p *patience) now() time.Duration { return time.Duration(p.spare.Load()) }

// pressure returns for how long in all some task of a cgroup has waited for a processor, from a
// cpu.pressure file.
func pressure(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	some, _, _ := strings.Cut(string(text), "\n")
	_, total, ok := strings.Cut(some, "total=")
	n, err := strconv.ParseInt(total, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s: %q has no total", file, some)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Package health detects long-lived loops of a process that are stuck. Each loop registers
// ([Loops.Add]) and beats; one that works for longer than it announced is late, and
// [Loops.Late] names it. /healthz, systemd's watchdog and the answers to the agent's pings
// depend on that. All parts use it; it imports no other package of this module.
//
// Lateness is measured in the time that this process was given: while the process is stopped,
// or the machine is suspended or has no processor for it, no loop becomes late.
package health

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Loops are the loops of a process. The zero value is ready; its time passes while [Loops.Run]
// runs. A nil Loops accepts loops, and none of them is ever late.
type Loops struct {
	lived atomic.Int64 // nanoseconds of lived time

	mu  sync.Mutex // guards all
	all map[*Beat]bool
}

// A Beat belongs to one loop. Its methods may be called from any goroutine, and on nil.
type Beat struct {
	loops  *Loops
	name   string
	within time.Duration
	// since is the lived time at which the loop last beat, or resting while it waits for
	// something external.
	since atomic.Int64
}

const resting = -1

// Within is the time for loops that turn several times a second: far longer than anything but a
// fault takes.
const Within = 5 * time.Second

// step is the resolution of lived time. Of more than longestStep between two steps, the rest
// was not given to this process.
const (
	step        = 100 * time.Millisecond
	longestStep = 5 * step
)

// Run makes time pass until ctx ends.
func (l *Loops) Run(ctx context.Context) {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		l.pass(now.Sub(last))
		last = now
	}
}

func (l *Loops) pass(d time.Duration) { l.lived.Add(int64(min(d, longestStep))) }

// Add registers a loop that must beat, or rest, within a time. It counts as beating now.
func (l *Loops) Add(name string, within time.Duration) *Beat {
	if l == nil {
		return nil
	}
	b := &Beat{loops: l, name: name, within: within}
	b.Beat()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[*Beat]bool{}
	}
	l.all[b] = true
	return b
}

// Beat records that the loop turns.
func (b *Beat) Beat() {
	if b != nil {
		b.since.Store(b.loops.lived.Load())
	}
}

// Rest records that the loop waits for something that may never come. The next Beat ends that.
func (b *Beat) Rest() {
	if b != nil {
		b.since.Store(resting)
	}
}

// End removes the loop.
func (b *Beat) End() {
	if b == nil {
		return
	}
	b.loops.mu.Lock()
	defer b.loops.mu.Unlock()
	delete(b.loops.all, b)
}

// Late returns an error that names the loops that are late, nil if there are none.
func (l *Loops) Late() error {
	if l == nil {
		return nil
	}
	now := l.lived.Load()
	var late []string
	l.mu.Lock()
	for b := range l.all {
		since := b.since.Load()
		if ago := time.Duration(now - since); since != resting && ago > b.within {
			late = append(late, fmt.Sprintf("%s has been stuck for %v (limit %v)", b.name, ago.Round(step), b.within))
		}
	}
	l.mu.Unlock()
	if len(late) == 0 {
		return nil
	}
	slices.Sort(late)
	return fmt.Errorf("stuck: %s", strings.Join(late, "; "))
}

// ServeHTTP answers ok, or 503 with the loops that are late.
func (l *Loops) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := l.Late(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Write([]byte("ok\n"))
}

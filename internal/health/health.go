// Package health knows whether the long-lived loops of a process turn. Each loop
// adds itself ([Loops.Add]) and beats; one that is at work for longer than it
// said is late, and [Loops.Late] names it. /healthz, systemd's watchdog and the
// answers to the agent's pings are made of that. All parts use it; it imports
// nothing of ours.
//
// Lateness is measured in time that this process was given: while it is stopped,
// or the machine is suspended or gives it no processor, no loop gets later.
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

// Loops is the loops of a process. The zero value is ready; time passes in it
// while [Loops.Run] runs. A nil one takes loops, and none is ever late.
type Loops struct {
	lived atomic.Int64 // nanoseconds

	mu  sync.Mutex // guards all
	all map[*Beat]bool
}

// A Beat is one loop. Its methods may be called by any goroutine, and on nil.
type Beat struct {
	loops  *Loops
	name   string
	within time.Duration
	// since is when, in lived time, the loop last showed that it turns; resting
	// while it waits for something from outside.
	since atomic.Int64
}

const resting = -1

// Within is what loops are given that turn several times a second: far longer
// than anything but a fault keeps them.
const Within = 5 * time.Second

// step is how often time is taken; of more than longestStep between two times
// this process was not given the rest.
const (
	step        = 100 * time.Millisecond
	longestStep = 5 * step
)

// Run has time pass until ctx ends.
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

// Add makes a loop known that beats, or rests, within a time.
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

// Beat shows that the loop turns.
func (b *Beat) Beat() {
	if b != nil {
		b.since.Store(b.loops.lived.Load())
	}
}

// Rest says that the loop waits for something that may never come; the next Beat
// ends it.
func (b *Beat) Rest() {
	if b != nil {
		b.since.Store(resting)
	}
}

// End says that the loop has ended.
func (b *Beat) End() {
	if b == nil {
		return
	}
	b.loops.mu.Lock()
	defer b.loops.mu.Unlock()
	delete(b.loops.all, b)
}

// Late is the error that names loops that are late; nil where all turn.
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
			late = append(late, fmt.Sprintf("%s has not turned for %v, allowed are %v", b.name, ago.Round(step), b.within))
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

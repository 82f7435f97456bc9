package demo

import (
	"fmt"
	"sync"
	"time"
)

// telling reports what the demo is doing, and on a terminal repeats it every tellEvery with the elapsed time.
// During a phase each line begins with the phase.
type telling struct {
	say   func(string)
	bytes func() (uint64, error) // passed between the hosts so far
	done  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex // guards the rest
	phase string     // empty: none has begun
	// What is going on, since when, and bytes at that time.
	what  string
	since time.Time
	from  uint64
}

// tellEvery is short enough that nobody thinks that the demo hangs.
const tellEvery = 2 * time.Second

// newTelling starts the repetition, if there is to be one. bytes is called under the lock, every
// tellEvery.
func newTelling(say func(string), repeat bool, bytes func() (uint64, error)) *telling {
	t := &telling{say: say, bytes: bytes, done: make(chan struct{})}
	if say != nil && repeat {
		t.ended.Go(t.repeat)
	}
	return t
}

// announcePhase reports that phase n of all begins.
func (t *telling) announcePhase(n, all int, name string) {
	t.mu.Lock()
	t.phase = fmt.Sprintf("phase %d of %d, %s", n, all, name)
	t.mu.Unlock()
	t.tell("")
}

// endPhase ends the repetition for the last phase.
func (t *telling) endPhase() {
	t.mu.Lock()
	t.phase, t.what = "", ""
	t.mu.Unlock()
}

// tell reports a new activity.
func (t *telling) tell(what string) {
	if t.say == nil {
		return
	}
	t.mu.Lock()
	t.what, t.since = t.phase, time.Now()
	switch {
	case t.phase == "":
		t.what = what
	case what != "":
		t.what += ": " + what
	}
	t.from, _ = t.bytes() // shown in terminals only
	text := t.what
	t.mu.Unlock()
	t.say(text)
}

// repeat reports the present activity until close. The report is made under the lock and passed
// on without it.
func (t *telling) repeat() {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		text := ""
		if t.what != "" {
			text = fmt.Sprintf("%s, %.0f s", t.what, time.Since(t.since).Seconds())
			if now, err := t.bytes(); err == nil && now > t.from {
				text += fmt.Sprintf(", %.1f MB between the hosts", float64(now-t.from)/1e6)
			}
		}
		t.mu.Unlock()
		if text != "" {
			t.say(text)
		}
	}
}

// close ends the repetition and waits for it, so that nothing is said after it.
func (t *telling) close() {
	close(t.done)
	t.ended.Wait()
}

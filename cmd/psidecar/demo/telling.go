package demo

import (
	"fmt"
	"sync"
	"time"
)

// telling says what the demo does, and again every tellEvery while it does it.
type telling struct {
	say   func(string)
	bytes func() (uint64, error) // that have passed between the hosts
	done  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex
	what  string
	since time.Time
	from  uint64
}

// tellEvery is short enough that nobody thinks that the demo hangs.
const tellEvery = 2 * time.Second

func newTelling(say func(string), bytes func() (uint64, error)) *telling {
	t := &telling{say: say, bytes: bytes, done: make(chan struct{})}
	if say != nil {
		t.ended.Go(t.repeat)
	}
	return t
}

// tell says what is done from now on.
func (t *telling) tell(format string, args ...any) {
	if t.say == nil {
		return
	}
	t.mu.Lock()
	t.what, t.since = fmt.Sprintf(format, args...), time.Now()
	t.from, _ = t.bytes() // told for the eye only
	what := t.what
	t.mu.Unlock()
	t.say(what)
}

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
			text = fmt.Sprintf("%s: %.0f s", t.what, time.Since(t.since).Seconds())
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

func (t *telling) end() {
	close(t.done)
	t.ended.Wait()
}

package discover

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrStuck says that a read did not end in time, or was not started because earlier ones of the
// same owner have not ended. It takes a process that makes the kernel wait, for example by
// mapping a file of its own FUSE server where its arguments were.
var ErrStuck = errors.New("the read does not return")

const (
	// patience is how long a read may take. It covers memory or a short file, so a read that
	// takes longer is being held up on purpose, or the host is.
	patience = 2 * time.Second
	// A read that does not end holds a thread, which nothing can interrupt. With this many
	// stuck reads of one owner, or of all, no more are started, so that a hostile process costs
	// the agent a bounded number of threads.
	stuckOfOwner, stuckOfAll = 2, 64
)

// A guard runs reads that may never return, and abandons them after its patience is over. An
// abandoned read is counted until it returns. It must not be copied.
type guard struct {
	patience time.Duration

	mu    sync.Mutex     // guards what follows
	stuck map[string]int // abandoned reads that still run, by owner; no entry is 0
	all   int            // sum of stuck
}

func newGuard(patience time.Duration) *guard {
	return &guard{patience: patience, stuck: map[string]int{}}
}

// do returns the result of read, or ErrStuck after the guard's patience. read runs in a
// goroutine and may still run after do has returned; it must not touch the caller's data.
func (g *guard) do(owner string, read func() ([]byte, error)) ([]byte, error) {
	if err := g.mayBegin(owner); err != nil {
		return nil, err
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1) // buffered: an abandoned read must be able to finish
	go func() {
		b, err := read()
		done <- result{b, err}
	}()
	timer := time.NewTimer(g.patience)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.b, r.err
	case <-timer.C:
	}
	g.count(owner, 1)
	go func() {
		<-done
		g.count(owner, -1)
	}()
	return nil, fmt.Errorf("%w: not in %v", ErrStuck, g.patience)
}

// mayBegin refuses a read at either bound. Reads in progress are not counted until they are
// late, so several at once may exceed the bounds by their number.
func (g *guard) mayBegin(owner string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stuck[owner] >= stuckOfOwner || g.all >= stuckOfAll {
		return fmt.Errorf("%w: %d of this owner and %d in all have not", ErrStuck, g.stuck[owner], g.all)
	}
	return nil
}

func (g *guard) count(owner string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all += n
	if g.stuck[owner] += n; g.stuck[owner] == 0 {
		delete(g.stuck, owner)
	}
}

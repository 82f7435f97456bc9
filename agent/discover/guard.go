package discover

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrStuck says that a read has not ended in time, or that others of the same
// owner have not. The owner's processes make the kernel wait for them.
var ErrStuck = errors.New("the read does not end")

const (
	// patience is how long a read of a process's own may take: it is of memory,
	// or of a file of a few lines.
	patience = 2 * time.Second
	// Reads that have not ended hold a thread each, which nobody can take back.
	// Bounds of reads that hang, of one owner and of all: beyond them no more are
	// started.
	stuckOfOwner, stuckOfAll = 2, 64
)

// A guard does what may never end, and leaves it to itself after a while. It
// must not be copied.
type guard struct {
	patience time.Duration

	mu    sync.Mutex     // guards what follows
	stuck map[string]int // reads that were left, by owner; none is 0
	all   int            // the sum
}

func newGuard(patience time.Duration) *guard {
	return &guard{patience: patience, stuck: map[string]int{}}
}

// do returns what read does, or ErrStuck.
func (g *guard) do(owner string, read func() ([]byte, error)) ([]byte, error) {
	if err := g.mayBegin(owner); err != nil {
		return nil, err
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
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

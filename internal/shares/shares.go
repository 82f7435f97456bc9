// Package shares bounds what each of many holders has at a time, such as the hosts or the jobs that
// this process serves. Whoever has its share waits for itself, and keeps nobody else waiting.
package shares

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Of are the shares of holders of type K. It is safe for concurrent use.
type Of[K comparable] struct {
	each int64

	mu   sync.Mutex
	held map[K]*share // those that somebody has or waits for
}

type share struct {
	*semaphore.Weighted
	users int // that have a part of it or wait for one; guarded by Of.mu
}

// New returns shares of each for every holder.
func New[K comparable](each int64) *Of[K] { return &Of[K]{each: each, held: map[K]*share{}} }

// Take waits for one part of a holder's share, until ctx ends, and returns what gives it back.
func (o *Of[K]) Take(ctx context.Context, holder K) (back func(), err error) {
	o.mu.Lock()
	s := o.held[holder]
	if s == nil {
		s = &share{Weighted: semaphore.NewWeighted(o.each)}
		o.held[holder] = s
	}
	s.users++
	o.mu.Unlock()
	leave := func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(o.held, holder)
		}
	}
	if err := s.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	return func() { s.Release(1); leave() }, nil
}

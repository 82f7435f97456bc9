package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNoMemory says that there is no memory within the bound.
var ErrNoMemory = errors.New("no memory within the bound")

// stateShare is the part of a [Memory] that may be reserved for state kept from
// message to message; the rest is left for messages.
const stateShare = 2

// reserveWithin is how long [Memory.Reserve] waits, if [Memory.Patience] does not
// say.
const reserveWithin = 10 * time.Second

// Reserve counts n bytes that the caller is about to allocate and keep for
// longer than a message: what a decoder remembers. It waits a while for others to
// give theirs back. Up to 64 KiB at a time are not counted. A nil Memory has no
// bound.
func (m *Memory) Reserve(n int) error {
	if m == nil || n <= baseBuffer {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(m.Patience, reserveWithin))
	defer cancel()
	if err := m.state.Acquire(ctx, int64(n)); err != nil {
		return fmt.Errorf("%w for %d bytes to remember: %w", ErrNoMemory, n, err)
	}
	if err := m.bound.Acquire(ctx, int64(n)); err != nil {
		m.state.Release(int64(n))
		return fmt.Errorf("%w for %d bytes to remember: %w", ErrNoMemory, n, err)
	}
	return nil
}

// TryReserve is Reserve for what can be done without: it does not wait.
func (m *Memory) TryReserve(n int) bool {
	if m == nil || n <= baseBuffer {
		return true
	}
	if !m.state.TryAcquire(int64(n)) {
		return false
	}
	if !m.bound.TryAcquire(int64(n)) {
		m.state.Release(int64(n))
		return false
	}
	return true
}

// Unreserve gives back what a call of Reserve or TryReserve took.
func (m *Memory) Unreserve(n int) {
	if m != nil && n > baseBuffer {
		m.bound.Release(int64(n))
		m.state.Release(int64(n))
	}
}

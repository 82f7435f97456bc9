package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNoMemory means that the bound on memory was reached.
var ErrNoMemory = errors.New("no memory within the bound")

// stateShare is the divisor of the bound that gives the part for state kept from message to
// message. The rest is left for messages, so that what decoders remember cannot starve them.
const stateShare = 2

// reserveWithin is how long [Memory.Reserve] waits by default.
const reserveWithin = 10 * time.Second

// Reserve charges n bytes that the caller is about to allocate and keep for longer than a message,
// such as what a decoder remembers. It blocks until others have released theirs, for as long as
// Patience; the error wraps [ErrNoMemory]. Reservations of up to 64 KiB do not count. A nil Memory
// has no bound.
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

// TryReserve is Reserve without waiting, for what the caller can do without.
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

// Unreserve releases what a call of Reserve or TryReserve with the same n has charged.
func (m *Memory) Unreserve(n int) {
	if m != nil && n > baseBuffer {
		m.bound.Release(int64(n))
		m.state.Release(int64(n))
	}
}

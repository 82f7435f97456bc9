package relay

import "errors"

// ErrNoMemory means that the bound on memory was reached.
var ErrNoMemory = errors.New("no memory within the bound")

// stateShare is the divisor of the bound that gives the part for state kept from message to
// message. The rest is left for messages, so that what decoders remember cannot starve them.
const stateShare = 2

// TryReserve charges n bytes that the caller is about to allocate and keep for longer than a
// message, and reports whether they were free. A nil Memory has no bound.
func (m *Memory) TryReserve(n int) bool {
	if m == nil {
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

// Unreserve releases n bytes of what TryReserve has charged, whichever calls did.
func (m *Memory) Unreserve(n int) {
	if m != nil {
		m.bound.Release(int64(n))
		m.state.Release(int64(n))
	}
}

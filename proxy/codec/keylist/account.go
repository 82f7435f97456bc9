package keylist

import "fmt"

// step is how much is reserved at a time for a state that grows: reserving takes a lock
// that all connections share.
const step = 256 << 10

// An Account counts the bytes of a state that grows and shrinks, and reserves them from a
// Memory in steps. reserved is a multiple of step, at least used and, after Shrink, less
// than two steps above it. An Account is not safe for concurrent use.
type Account struct {
	memory   Memory // nil: no bound
	used     int
	reserved int // in steps, at least used
}

// Grow counts n more bytes. It blocks until they are free, or fails when the Memory gives
// up; what was reserved until then stays reserved, and Close returns it.
func (a *Account) Grow(n int) error {
	for a.memory != nil && a.used+n > a.reserved {
		if err := a.memory.Reserve(step); err != nil {
			return fmt.Errorf("keylist: %w", err)
		}
		a.reserved += step
	}
	a.used += n
	return nil
}

// TryGrow is Grow without waiting: it reports whether the bytes were free.
func (a *Account) TryGrow(n int) bool {
	for a.memory != nil && a.used+n > a.reserved {
		if !a.memory.TryReserve(step) {
			return false
		}
		a.reserved += step
	}
	a.used += n
	return true
}

// Shrink counts n bytes less. It keeps a step in reserve, so that a state that grows and
// shrinks in turns does not reserve and release in turns.
func (a *Account) Shrink(n int) {
	a.used -= n
	for a.memory != nil && a.reserved-a.used >= 2*step {
		a.memory.Unreserve(step)
		a.reserved -= step
	}
}

// Close returns everything.
func (a *Account) Close() {
	for ; a.reserved > 0; a.reserved -= step {
		a.memory.Unreserve(step)
	}
	a.used = 0
}

// NewAccount returns an account with m, or without a bound if m is nil.
func NewAccount(m Memory) Account { return Account{memory: m} }

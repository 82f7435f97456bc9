package keylist

import "fmt"

// step is how much is reserved at a time for a state that grows.
const step = 256 << 10

// An Account counts the bytes of a state that grows and shrinks, in steps that are
// reserved of a Memory. It is not safe for use by several goroutines.
type Account struct {
	memory   Memory // nil: no bound
	used     int
	reserved int // in steps, at least used
}

// Grow counts n more bytes, waiting for them to be free.
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

// TryGrow is Grow without waiting.
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

// Shrink counts n bytes less.
func (a *Account) Shrink(n int) {
	a.used -= n
	for a.memory != nil && a.reserved-a.used >= 2*step {
		a.memory.Unreserve(step)
		a.reserved -= step
	}
}

// Close gives everything back.
func (a *Account) Close() {
	for ; a.reserved > 0; a.reserved -= step {
		a.memory.Unreserve(step)
	}
	a.used = 0
}

// NewAccount returns an account of m, without a bound where that is nil.
func NewAccount(m Memory) Account { return Account{memory: m} }

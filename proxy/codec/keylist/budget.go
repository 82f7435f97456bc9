package keylist

import (
	"context"
	"fmt"
	"time"
)

// Memory bounds what all encoders and decoders take together; relay.Memory implements it. A
// decoder takes what an encoded list claims from it before anything is allocated: 128 keys
// at equal distances take one byte on the wire. It is safe for concurrent use.
type Memory interface {
	// Borrow lends a buffer for one message; Return takes it back.
	Borrow(ctx context.Context, n int) ([]byte, error)
	Return(b []byte)
	// Reserve counts memory that is kept across messages and may block; TryReserve
	// fails instead.
	Reserve(n int) error
	TryReserve(n int) bool
	Unreserve(n int)
}

const (
	// uncounted is the size up to which a buffer is not counted.
	uncounted = 64 << 10
	// patience is how long a list waits for memory before the link fails.
	patience = 30 * time.Second
)

// room is a buffer for a list: a small one that is kept from message to message, or a large
// one that is borrowed until the message has been written.
type room struct {
	small []byte
	lent  []byte
}

// reserve returns an empty buffer with a capacity of n bytes. What the room held is lost.
func (r *room) reserve(m Memory, n int) ([]byte, error) {
	if m == nil || n <= uncounted {
		if cap(r.small) < n {
			r.small = make([]byte, 0, n)
		}
		return r.small[:0], nil
	}
	if len(r.lent) >= n {
		return r.lent[:0], nil
	}
	r.release(m)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, err := m.Borrow(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("keylist: no memory within the bound for a list of %d bytes: %w", n, err)
	}
	r.lent = b
	return b[:0], nil
}

// release returns a borrowed buffer.
func (r *room) release(m Memory) {
	if r.lent != nil {
		m.Return(r.lent)
		r.lent = nil
	}
}

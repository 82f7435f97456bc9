package compact

import (
	"context"
	"fmt"

	"github.com/psidecar/psidecar/proxy/relay"
)

// uncounted is the size up to which a buffer is kept and not counted.
const uncounted = 64 << 10

// buffer is room for a frame: a small one that is kept from message to message, or a large
// one that is borrowed until the message has been written.
type buffer struct {
	small []byte
	lent  []byte
}

// reserve returns an empty buffer with a capacity of n bytes, waiting up to memoryPatience
// for a large one. What it held is lost.
func (b *buffer) reserve(m *relay.Memory, n int) ([]byte, error) {
	if m == nil || n <= uncounted {
		if cap(b.small) < n {
			b.small = make([]byte, 0, n)
		}
		return b.small[:0], nil
	}
	b.release(m)
	ctx, cancel := context.WithTimeout(context.Background(), memoryPatience)
	defer cancel()
	lent, err := m.Borrow(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("no memory within the bound for a frame of %d bytes: %w", n, err)
	}
	b.lent = lent
	return lent[:0], nil
}

// release returns a borrowed buffer.
func (b *buffer) release(m *relay.Memory) {
	if b.lent != nil {
		m.Return(b.lent)
		b.lent = nil
	}
}

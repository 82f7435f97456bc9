package keylist

// Memory bounds what all encoders and decoders take together; relay.Loan implements it. A
// decoder takes what an encoded list claims from it before anything is allocated: 128 keys
// at equal distances take one byte on the wire. It is safe for concurrent use.
type Memory interface {
	// Borrow lends a buffer until the message in hand is not used any more.
	Borrow(n int) ([]byte, error)
	// Reserve counts memory that is kept across messages and may block; TryReserve
	// fails instead.
	Reserve(n int) error
	TryReserve(n int) bool
	Unreserve(n int)
}

// uncounted is the size up to which a buffer is not counted.
const uncounted = 64 << 10

// Room is a buffer: a small one that is kept from message to message, or a large
// one that is borrowed until the message has been written.
type Room struct{ small []byte }

// Reserve returns an empty buffer with a capacity of n bytes, and waits for a large one. What the room held
// is lost.
func (r *Room) Reserve(m Memory, n int) ([]byte, error) {
	if m == nil || n <= uncounted {
		if cap(r.small) < n {
			r.small = make([]byte, 0, n)
		}
		return r.small[:0], nil
	}
	b, err := m.Borrow(n)
	return b[:0], err
}

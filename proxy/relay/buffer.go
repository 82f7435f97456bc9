package relay

import (
	"context"
	"fmt"
	"io"
	"math/bits"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/keep"
)

// baseBuffer is the size of the buffer that a direction reads into while
// nothing larger must be held; its log2 is baseClass.
const (
	baseClass  = 16
	baseBuffer = 1 << baseClass
	topClass   = 28
)

// Memory is what the directions of many connections share: buffers, and a
// bound for those larger than 64 KiB.
type Memory struct {
	// Patience is how long Reserve waits; 0: ten seconds. It is set before use.
	Patience time.Duration

	limit   int64
	bound   *semaphore.Weighted
	state   *semaphore.Weighted // of bound, the part kept from message to message
	classes [topClass - baseClass + 1]sync.Pool
}

// NewMemory returns a Memory whose large buffers take at most limit bytes.
func NewMemory(limit int64) *Memory {
	return &Memory{limit: limit, bound: semaphore.NewWeighted(limit), state: semaphore.NewWeighted(limit / stateShare)}
}

// Limit is the bound in bytes.
func (m *Memory) Limit() int64 { return m.limit }

// get returns a buffer of 1<<class bytes.
func (m *Memory) get(class int) []byte {
	if b, ok := m.classes[class-baseClass].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 1<<class)
}

func (m *Memory) put(b []byte) { m.classes[classOf(len(b))-baseClass].Put(&b) }

// Borrow returns a buffer of at least n bytes, of any content, within the
// bound: it waits for others to give theirs back, at most as long as ctx says.
// Up to 64 KiB are not counted. [Memory.Return] takes the buffer back.
func (m *Memory) Borrow(ctx context.Context, n int) ([]byte, error) {
	class := classOf(max(n, 1))
	if class > topClass {
		return nil, fmt.Errorf("%d bytes are more than one buffer may have", n)
	}
	if class > baseClass {
		if 1<<class > m.limit {
			return nil, fmt.Errorf("%w of %d bytes: a buffer of %d bytes", ErrNoMemory, m.limit, 1<<class)
		}
		if err := m.bound.Acquire(ctx, 1<<class); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoMemory, err)
		}
	}
	return m.get(class), nil
}

// Return takes back a buffer of Borrow, in its full length.
func (m *Memory) Return(b []byte) {
	if len(b) > baseBuffer {
		m.bound.Release(int64(len(b)))
	}
	m.put(b)
}

// classOf returns the log2 of the smallest buffer that holds n bytes.
func classOf(n int) int { return max(baseClass, bits.Len(uint(n-1))) }

// input reads one direction of a connection into a buffer that begins with
// what was not consumed yet. While nothing is held and nothing comes, there is
// no buffer.
type input struct {
	conn   net.Conn
	raw    syscall.RawConn // of a bare TCP connection
	memory *Memory
	window *keep.Window // reads from it; nil: nothing stays in the kernel's queue
	buf    []byte
	r, w   int // unconsumed bytes are buf[r:w]
	// unbound: the buffer, larger than the base, no longer counts in the bound.
	unbound bool

	ready func(fd uintptr) bool // readReady, bound once
	n     int                   // its results
	err   error
}

func (in *input) init(conn net.Conn, m *Memory) error {
	in.conn, in.memory = conn, m
	if t, ok := conn.(*net.TCPConn); ok {
		raw, err := t.SyscallConn()
		if err != nil {
			return err
		}
		in.raw, in.ready = raw, in.readReady
	}
	return nil
}

// bytes returns what was not consumed yet.
func (in *input) bytes() []byte { return in.buf[in.r:in.w] }

// larger returns the class of the buffer that is to replace a full one of
// which need bytes are wanted: never more than twice as large as what has
// come, 1 MiB excepted, so that sizes which a frame claims cost nothing. It
// returns 0 where the buffer will do.
func (in *input) larger(need int) int {
	if in.buf == nil || need <= len(in.buf) || in.w-in.r < len(in.buf) {
		return 0
	}
	return classOf(min(need, max(2*len(in.buf), 1<<20)))
}

// room makes the buffer larger where need bytes do not fit and the buffer is
// full. It reports false where the bound on memory forbids it.
func (in *input) room(need int) bool {
	class := in.larger(need)
	if class == 0 {
		return true
	}
	if class > topClass || !in.memory.bound.TryAcquire(1<<class) {
		return false
	}
	in.replace(class)
	return true
}

// grow is room that waits until there is memory.
func (in *input) grow(ctx context.Context, need int) error {
	class := in.larger(need)
	if class == 0 {
		return nil
	}
	if class > topClass {
		return fmt.Errorf("%d bytes are more than one buffer may have", need)
	}
	// The old reservation is released before the larger one is made: two buffers
	// that grow could otherwise wait for each other.
	if len(in.buf) > baseBuffer {
		in.memory.bound.Release(int64(len(in.buf)))
		in.unbound = true
	}
	if err := in.memory.bound.Acquire(ctx, 1<<class); err != nil {
		return err
	}
	in.replace(class)
	return nil
}

func (in *input) replace(class int) {
	bigger := in.memory.get(class)
	held := copy(bigger, in.bytes())
	in.release()
	in.buf, in.r, in.w = bigger, 0, held
}

// release gives the buffer back.
func (in *input) release() {
	if in.buf == nil {
		return
	}
	if len(in.buf) > baseBuffer && !in.unbound {
		in.memory.bound.Release(int64(len(in.buf)))
	}
	in.unbound = false
	in.memory.put(in.buf)
	in.buf, in.r, in.w = nil, 0, 0
}

// fill reads more, at least a byte. Slices of what bytes returned before
// become invalid.
func (in *input) fill() error {
	if in.r > 0 {
		in.w = copy(in.buf, in.bytes())
		in.r = 0
	}
	if in.raw == nil {
		if in.buf == nil {
			in.buf = in.memory.get(baseClass)
		}
		n, err := in.conn.Read(in.buf[in.w:])
		in.w += n
		if n > 0 {
			return nil
		}
		return err
	}
	in.n, in.err = 0, nil
	if err := in.raw.Read(in.ready); err != nil {
		return err
	}
	if in.err != nil {
		return in.err
	}
	if in.n == 0 {
		return io.EOF
	}
	in.w += in.n
	return nil
}

// readReady reads from a socket, and reports false where there is nothing to
// read; an empty buffer is then given back for as long as that lasts.
func (in *input) readReady(fd uintptr) bool {
	if in.buf == nil {
		in.buf = in.memory.get(baseClass)
	}
	for {
		if in.window != nil {
			in.n, in.err = in.window.Read(fd, in.buf[in.w:])
		} else {
			in.n, in.err = unix.Read(int(fd), in.buf[in.w:])
		}
		switch in.err {
		case nil:
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			in.n, in.err = 0, nil
			if in.w == 0 {
				in.release()
			}
			return false
		default:
			in.n = 0
			return true
		}
	}
}

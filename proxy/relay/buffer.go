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

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/keep"
)

// A direction reads into a buffer of baseBuffer bytes while nothing larger must be held. Buffers
// have sizes of 1<<class bytes, from baseClass to topClass (256 MiB).
const (
	baseClass  = 16
	baseBuffer = 1 << baseClass
	topClass   = 28
)

// Memory is shared by the directions of many connections: pools of buffers, and a bound on the
// bytes in buffers larger than 64 KiB. It is safe for concurrent use.
type Memory struct {
	// Patience is how long Reserve waits; 0 means ten seconds. It is set before use.
	Patience time.Duration

	limit int64
	*pool
	mu      sync.Mutex
	sources map[string]*share                   // by name; those that a Loan has; guarded by mu
	classes [topClass - baseClass + 1]sync.Pool // of *[]byte, by class - baseClass
}

// NewMemory returns a Memory whose large buffers take at most limit bytes.
func NewMemory(limit int64) *Memory {
	part := min(limit/8, max(limit-1<<topClass, 0)/2)
	return &Memory{limit: limit, pool: newPool(limit-2*part, part, limit/stateShare), sources: map[string]*share{}}
}

// Limit is the bound in bytes.
func (m *Memory) Limit() int64 { return m.limit }

// get returns a buffer of 1<<class bytes, with arbitrary content. It does not count in the bound.
// Whoever keeps the pointer for put saves an allocation.
func (m *Memory) get(class int) *[]byte {
	if b, ok := m.classes[class-baseClass].Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 1<<class)
	return &b
}

func (m *Memory) put(b *[]byte) { m.classes[classOf(len(*b))-baseClass].Put(b) }

// classOf returns the log2 of the smallest buffer that holds n bytes.
func classOf(n int) int { return max(baseClass, bits.Len(uint(n-1))) }

// input reads one direction of a connection into a buffer, which starts with the bytes that were
// not consumed yet. There is no buffer while nothing is held and nothing comes, so idle connections
// cost none. It belongs to the direction's goroutine.
type input struct {
	conn    net.Conn
	raw     syscall.RawConn // nil where conn is not bare TCP
	memory  *Memory
	window  *keep.Window // reads from conn; nil: nothing stays in the kernel's queue
	buf     []byte
	pooled  *[]byte             // buf, as the pool has it
	r, w    int                 // unconsumed bytes are buf[r:w]
	charged *semaphore.Weighted // what buf counts in; nil: it does not, like one of the base's size

	ready func(fd uintptr) bool // readReady, as a value made once: a method value at each read would allocate
	n     int                   // results of ready
	err   error
}

// init prepares the input to read from conn. Only a bare TCP connection can be read without a
// buffer in hand.
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

// bytes returns the unconsumed bytes, valid until the next fill, room, grow or release.
func (in *input) bytes() []byte { return in.buf[in.r:in.w] }

// larger returns the class of the buffer that replaces the current one, where need bytes are wanted
// and it is full, and 0 where the current one will do. A buffer grows to at most twice the bytes
// that have come (1 MiB at first), so that a size that a frame header merely claims costs no
// memory.
func (in *input) larger(need int) int {
	if in.buf == nil || need <= len(in.buf) || in.w-in.r < len(in.buf) {
		return 0
	}
	return classOf(min(need, max(2*len(in.buf), 1<<20)))
}

// room replaces a full buffer by a larger one where need bytes do not fit. It does not wait, and
// returns false where the bound on memory forbids it.
func (in *input) room(need int) bool {
	class := in.larger(need)
	if class == 0 {
		return true
	}
	if class > topClass || !in.memory.bound.TryAcquire(1<<class) {
		return false
	}
	in.replace(class, in.memory.bound)
	return true
}

// grow is like room, but waits for memory until ctx ends. Whoever has to wait, and holds some
// already, waits for all that it needs at once.
func (in *input) grow(ctx context.Context, need int) error {
	if in.room(need) {
		return nil
	}
	class, from := in.larger(need), in.memory.bound
	if len(in.buf) > baseBuffer {
		class, from = classOf(need), in.memory.input
	}
	if class > topClass {
		return fmt.Errorf("%d bytes are more than one buffer may have", need)
	}
	// A small bound has no such part: two buffers that grow must not wait for each other, so the
	// old one stops counting.
	if from == in.memory.input && 1<<class > in.memory.part {
		from = in.memory.bound
		in.uncharge()
	}
	if err := from.Acquire(ctx, 1<<class); err != nil {
		return err
	}
	in.replace(class, from)
	return nil
}

// growWithin is grow for at most memoryPatience; what is what the room is for.
func (in *input) growWithin(ctx context.Context, need int, what string) error {
	ctx, cancel := context.WithTimeout(ctx, memoryPatience)
	defer cancel()
	if err := in.grow(ctx, need); err != nil {
		return reason.Errorf(reason.Memory, "holding %s, %d bytes: no memory within the bound for %s: %w", what, need, memoryPatience, err)
	}
	return nil
}

// memoryPatience is how long a message that must be held waits for memory before its connection
// ends.
const memoryPatience = 30 * time.Second

// replace moves the unconsumed bytes into a buffer of another class, which counts in charged.
func (in *input) replace(class int, charged *semaphore.Weighted) {
	bigger := in.memory.get(class)
	held := copy(*bigger, in.bytes())
	in.release()
	in.buf, in.pooled, in.charged, in.r, in.w = *bigger, bigger, charged, 0, held
}

// begin takes a buffer where there is none.
func (in *input) begin() {
	if in.buf == nil {
		in.pooled = in.memory.get(baseClass)
		in.buf = *in.pooled
	}
}

// release gives the buffer back, with its reservation.
func (in *input) release() {
	if in.buf == nil {
		return
	}
	in.uncharge()
	in.memory.put(in.pooled)
	in.buf, in.pooled, in.r, in.w = nil, nil, 0, 0
}

// uncharge ends that the buffer counts.
func (in *input) uncharge() {
	if in.charged != nil {
		in.charged.Release(int64(len(in.buf)))
		in.charged = nil
	}
}

// fill reads at least one byte, and blocks until there is one, the stream ends (io.EOF) or the read
// deadline passes. It moves the unconsumed bytes to the buffer's start, so slices that bytes has
// returned become invalid. The buffer must not be full.
func (in *input) fill() error {
	if in.r > 0 {
		in.w = copy(in.buf, in.bytes())
		in.r = 0
	}
	if in.raw == nil {
		in.begin()
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

// readReady reads from a socket that may be readable; the runtime's poller calls it again once it
// is. It returns false where there is nothing to read. An empty buffer is given back meanwhile,
// which is why it reads by itself instead of calling conn.Read with a buffer in hand.
func (in *input) readReady(fd uintptr) bool {
	in.begin()
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

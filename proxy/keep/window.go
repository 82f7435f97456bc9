package keep

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Why a connection is not kept any more, or never was.
type Reason string

// The reasons.
const (
	Stopping Reason = "stopping" // one of the proxies is about to end, in order
	NoAcks   Reason = "no_acks"  // the other proxy does not acknowledge any more, or keeps nothing
	Values   Reason = "values"   // a rule changes values: the bytes differ
	Over     Reason = "over"     // the connection has ended
)

// A Window reads what the job's process sends so that it stays in the kernel's queue
// until it is acknowledged. It is for one reader; the other methods may be called by
// other goroutines.
//
// Offsets count the bytes of the stream: consumed <= peeked; those between are in
// the queue and were read. Boundaries are beyond consumed.
type Window struct {
	raw  syscall.RawConn
	page *Page
	tell func(Reason) // once, when the connection is kept no more

	mu               sync.Mutex // guards what follows
	off              Reason     // empty: kept
	still            bool       // acknowledgements count for nothing: the position was sent
	consumed, peeked uint64
	sent             uint64 // of peeked, before which all is on the link
	bounds           bounds
}

// Supported is nil where the kernel can show what is in a TCP socket's queue from an
// offset on (SO_PEEK_OFF).
func Supported() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("asking the kernel for SO_PEEK_OFF: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0); err != nil {
		return fmt.Errorf("the kernel has no SO_PEEK_OFF for TCP (it came with Linux 6.9): %w", err)
	}
	return nil
}

// queueBytes is the least that the kernel's queue should be able to hold: it has
// what the other proxy has not yet acknowledged.
const queueBytes = 1 << 20

// NewWindow begins to read at what the kernel says is consumed. tell is called once,
// when the connection is kept no more.
func NewWindow(c *net.TCPConn, page *Page, consumed uint64, tell func(Reason)) (*Window, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &Window{raw: raw, page: page, tell: tell, consumed: consumed, peeked: consumed, sent: consumed}
	failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0)
		// The kernel makes room for that many bytes, and goes on making more by itself.
		for _, n := range []int{queueBytes, 1} {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n))
		}
	})
	if err := errors.Join(failed, err); err != nil {
		return nil, fmt.Errorf("reading so that bytes stay in the queue: %w", err)
	}
	return w, nil
}

// Read reads what comes next from the socket, which is c's descriptor. It does not
// block.
func (w *Window) Read(fd uintptr, b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off != "" {
		return unix.Read(int(fd), b)
	}
	n, err := receive(fd, b, len(b), unix.MSG_PEEK)
	if n > 0 {
		w.peeked += uint64(n)
	}
	return n, err
}

// receive is recv(2), without the address that package unix would allocate.
func receive(fd uintptr, b []byte, size, flags int) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(size), uintptr(flags|unix.MSG_DONTWAIT), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// Sent notes that all that was read is on the link but for the last bytes; message:
// and that a message begins there.
func (w *Window) Sent(unsent int, message bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off != "" {
		return
	}
	w.sent = w.peeked - uint64(unsent)
	if message {
		w.bounds.addBoundary(w.sent)
	}
}

// Bytes says that no message counts from here on: the stream can be taken up at any
// byte.
func (w *Window) Bytes() { w.page.set(flagBytes) }

// Page returns the connection's page.
func (w *Window) Page() *Page { return w.page }

// Peeked is how many bytes of the stream were read.
func (w *Window) Peeked() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peeked
}

// Unacked is how many of them are in the queue.
func (w *Window) Unacked() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peeked - w.consumed
}

// Acked takes in that the process at the far end has got what was sent before an
// offset: up to there, or the last message's end before, it leaves the queue.
func (w *Window) Acked(offset uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off != "" || w.still {
		return
	}
	at, ok := w.bounds.popUpTo(min(offset, w.sent))
	if w.page.has(flagBytes) {
		at, ok = min(offset, w.sent), true
	}
	if !ok || at < w.consumed {
		return
	}
	w.page.noteNext(at)
	if w.consume(at) {
		w.page.done(at)
	}
}

// consume removes the bytes before an offset from the queue.
func (w *Window) consume(to uint64) bool {
	var err error
	failed := w.raw.Control(func(fd uintptr) {
		for w.consumed < to && err == nil {
			var n int
			n, err = receive(fd, nil, int(to-w.consumed), unix.MSG_TRUNC)
			if errors.Is(err, unix.EINTR) {
				err = nil
				continue
			}
			if n == 0 {
				err = io.ErrUnexpectedEOF
			}
			if n > 0 {
				w.consumed += uint64(n)
			}
		}
	})
	return errors.Join(failed, err) == nil
}

// Off ends that bytes stay in the queue: the connection is kept no more.
func (w *Window) Off(why Reason) {
	w.mu.Lock()
	first := w.off == ""
	if first {
		w.off = why
		w.page.set(flagOff)
		w.consume(w.peeked) // an error comes back to the next read
		w.raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1) })
	}
	w.mu.Unlock()
	if first {
		w.tell(why)
	}
}

// Kept reports whether it still is.
func (w *Window) Kept() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.off == ""
}

// Pass takes all that was read out of the queue, since what follows is about to be
// moved by the kernel. Until that is acknowledged the connection cannot be taken
// up again.
func (w *Window) Pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off == "" {
		w.consume(w.peeked)
	}
}

// Passed notes how many bytes the kernel moved.
func (w *Window) Passed(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.consumed += uint64(n)
	w.peeked += uint64(n)
	w.sent = w.peeked
}

// Indexes of SO_MEMINFO.
const (
	memRmemAlloc = 0
	memRcvbuf    = 1
	memWords     = 9
)

// MakeRoom is called with the bytes read of a message that is incomplete. Where the
// queue cannot hold all of it, they leave the queue: until the message is
// acknowledged the connection cannot be taken up again.
func (w *Window) MakeRoom(unsent int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off != "" || w.peeked == w.consumed {
		return
	}
	var words [memWords]uint32
	size := uint32(unsafe.Sizeof(words))
	var errno syscall.Errno
	failed := w.raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&words)), uintptr(unsafe.Pointer(&size)), 0)
	})
	queued := w.peeked - w.consumed
	held := uint64(words[memRmemAlloc]) * min(uint64(unsent), queued) / queued
	if failed != nil || errno != 0 || held > uint64(words[memRcvbuf])/2 {
		w.consume(w.peeked)
	}
}

// Stand stops acknowledgements from changing where the stream stands.
func (w *Window) Stand() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still = true
}

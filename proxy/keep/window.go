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

// Window reads what the job's process sends so that it stays in the kernel's queue (MSG_PEEK,
// SO_PEEK_OFF) until the far process has it. It is for one reader; the other methods may be
// called by other goroutines.
//
// Offsets count the bytes of the stream. Bytes before consumed have left the queue, those
// before sent are on the link, and those before peeked were read; peeked is the largest.
// Boundaries are beyond consumed. Acknowledged bytes leave the queue only up to a boundary,
// so that what is sent again begins with a whole message; Pass and MakeRoom are the
// exceptions, after which the connection cannot be resumed for a while. mu is held during
// system calls that do not block.
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

// Supported returns nil where the kernel can read a TCP socket's queue from an offset on
// (SO_PEEK_OFF, since Linux 6.9).
func Supported() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("setting SO_PEEK_OFF: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0); err != nil {
		return fmt.Errorf("the kernel does not support SO_PEEK_OFF for TCP (since Linux 6.9): %w", err)
	}
	return nil
}

// queueBytes is the least capacity of the kernel's queue: it holds what the far proxy has not
// acknowledged yet.
const queueBytes = 1 << 20

// NewWindow begins to read at consumed, which must be what the kernel says. tell is called
// once, by whichever goroutine, when the connection is not kept any more.
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

// Read reads what comes next from the socket, whose descriptor is fd. It does not block:
// without data it returns EAGAIN.
func (w *Window) Read(fd uintptr, b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off != "" {
		// Still counted: the end of the stream is announced by its offset.
		n, err := unix.Read(int(fd), b)
		if n > 0 {
			w.consumed += uint64(n)
			w.peeked += uint64(n)
		}
		return n, err
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

// Sent notes that everything read is on the link, except for the last unsent bytes; message
// means that a message begins there.
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

// Bytes notes that the stream has no messages from here on: it can be resumed at any byte.
func (w *Window) Bytes() { w.page.set(flagBytes) }

// Page returns the connection's page.
func (w *Window) Page() *Page { return w.page }

// Peeked returns the number of bytes of the stream that were read, also since Off.
func (w *Window) Peeked() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peeked
}

// Unacked returns how many of those are still in the queue.
func (w *Window) Unacked() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peeked - w.consumed
}

// Acked notes that the far process has got everything before an offset: up to there, or to
// the last boundary before, it leaves the queue.
//
// The page gets the boundary before and after the bytes leave the queue. A kill in between
// leaves the kernel's count at one of the two, and Page.Standing accepts either.
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

// consume removes the bytes before an offset from the queue, without copying them
// (MSG_TRUNC).
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

// Off ends the keeping of the connection: everything read leaves the queue, and reads are
// plain from now on. Only the first reason counts.
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

// Kept reports whether the connection is still kept.
func (w *Window) Kept() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.off == ""
}

// Pass removes everything that was read from the queue, since the kernel is about to move
// what follows. Until that is acknowledged the connection cannot be resumed.
func (w *Window) Pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off == "" {
		w.consume(w.peeked)
	}
}

// Passed notes how many bytes the kernel has moved.
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

// MakeRoom is called with the number of bytes read of an incomplete message. Where the queue
// cannot hold all of it the sender would be blocked forever, so they leave the queue: until
// the message is acknowledged the connection cannot be resumed.
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

// Stand has acknowledgements no longer change where the stream stands: its position has been
// sent to the other proxy.
func (w *Window) Stand() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still = true
}

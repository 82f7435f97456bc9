package spare

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// requestWithin is how long a request that has begun may go without progress, and how long it waits for
	// memory.
	requestWithin = 15 * time.Second
	// progress is how many bytes have to arrive within requestWithin, or the rest of the request.
	progress = 64 << 10
	// mostUncounted is the memory of a request up to which it is not counted. A link keeps a buffer of this
	// size. Of a larger request as much has to arrive before it is given memory.
	mostUncounted = 64 << 10
	// mostPooled is the size of the largest buffer that is used again. What is left of it is not counted: the
	// garbage collector may take it.
	mostPooled = 8 << 20
	bufferStep = 64 << 10
	// LeastRoom is the memory of the largest request, in bytes. See [NewServer].
	LeastRoom = mostFrame + askMemory*MostWorkers + pieceMemory*mostPieces

	askMemory, pieceMemory = 8, 32
)

var (
	errStalled  = errors.New("a request stalled")
	errNoMemory = errors.New("there was no memory for a request")
)

// buffers have the memory of requests that were done, by its size in bufferStep.
var buffers [mostPooled/bufferStep + 1]sync.Pool

// bufferSize returns the memory of a buffer of n bytes.
func bufferSize(n int) int {
	if n > mostPooled {
		return n
	}
	return (n + bufferStep - 1) / bufferStep * bufferStep
}

// takeLarge returns n bytes with any content.
func takeLarge(n int) []byte {
	size := bufferSize(n)
	if n <= mostPooled {
		if b, ok := buffers[size/bufferStep].Get().(*[]byte); ok {
			return (*b)[:n]
		}
	}
	return make([]byte, n, size)
}

// giveLarge takes back what takeLarge returned.
func giveLarge(b []byte) {
	if cap(b) <= mostPooled {
		buffers[cap(b)/bufferStep].Put(&b)
	}
}

// intake reads the requests of one link, within the memory that all links share. It is for one
// goroutine.
//
// Invariant: it never waits for memory while it holds some. So requests that are too large together take
// turns, and none waits for one that waits itself. That is why all memory of a request is reserved at once, and
// not as its bytes come.
type intake struct {
	conn   net.Conn // for deadlines
	in     *bufio.Reader
	room   *semaphore.Weighted // shared by all; nil: there is no bound
	within time.Duration
	held   int64  // of room
	large  []byte // of the last request, if it did not fit in buf
	buf    []byte
}

func newIntake(conn net.Conn, t *Traffic, room *semaphore.Weighted, within time.Duration) *intake {
	return &intake{conn: conn, in: bufio.NewReaderSize(t.reader(conn), readBuffer), room: room, within: within}
}

// readRequest returns the next request. Its memory counts until releaseRoom is called, which must happen
// after an error too; the request must not be used any more then. It waits without limit for a request to
// begin.
func (t *intake) readRequest(ctx context.Context) (message, error) {
	if _, err := t.in.Peek(1); err != nil {
		return message{}, err
	}
	b, err := t.readBody(ctx)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: less than %d bytes of it came within %v, and it is not complete; the client sends it again", errStalled, progress, t.within)
	}
	if err == nil {
		err = t.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return message{}, err
	}
	return decodeMessage(b)
}

// readBody reads a frame that has begun.
func (t *intake) readBody(ctx context.Context) ([]byte, error) {
	if err := t.setDeadline(); err != nil {
		return nil, err
	}
	n, err := readLength(t.in)
	if err != nil {
		return nil, err
	}
	first := min(n, mostUncounted)
	if cap(t.buf) < first {
		t.buf = make([]byte, first)
	}
	b := t.buf[:first]
	if err := t.fillBytes(b); err != nil {
		return nil, err
	}
	h, err := decodeHead(b, n)
	if err != nil {
		return nil, err
	}
	if parsed := askMemory*h.asks + pieceMemory*h.pieces; n+parsed > mostUncounted {
		if err := t.reserveRoom(ctx, bufferSize(n)+parsed); err != nil {
			return nil, err
		}
	}
	if n == first {
		return b, nil
	}
	t.large = takeLarge(n)
	copy(t.large, b)
	return t.large, t.fillBytes(t.large[first:])
}

// setDeadline gives the link time for the next progress.
func (t *intake) setDeadline() error { return t.conn.SetReadDeadline(time.Now().Add(t.within)) }

// fillBytes reads as many bytes as b has, as long as there is progress.
func (t *intake) fillBytes(b []byte) error {
	for len(b) > 0 {
		if err := t.setDeadline(); err != nil {
			return err
		}
		n, err := io.ReadAtLeast(t.in, b, min(len(b), progress))
		if err != nil {
			return unexpected(err)
		}
		b = b[n:]
	}
	return nil
}

// reserveRoom acquires n bytes of the room, or waits.
func (t *intake) reserveRoom(ctx context.Context, n int) error {
	if t.room == nil {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, t.within)
	defer cancel()
	if err := t.room.Acquire(waiting, int64(n)); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: it takes %d bytes, which others did not leave it within %v; the client sends it again", errNoMemory, n, t.within)
	}
	t.held = int64(n)
	return nil
}

// releaseRoom releases what the last request has reserved.
func (t *intake) releaseRoom() {
	if t.large != nil {
		giveLarge(t.large)
		t.large = nil
	}
	if t.held > 0 {
		t.room.Release(t.held)
		t.held = 0
	}
}

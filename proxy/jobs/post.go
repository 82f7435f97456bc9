package jobs

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/shares"
)

const (
	// largeMemory bounds the bytes of all large letters that are being read or handled, and
	// letterMemory their parsed form and that of small ones, which is many times as large. Beyond
	// that readers wait, and thereby block their senders.
	largeMemory  = 64 << 20
	letterMemory = 128 << 20
	// letterHead is how much of a letter is read at first. All that says between whom it goes is in
	// that.
	letterHead = 4 << 10
	// letterRoom is the size of each connection's own buffer. A letter that is not larger is small.
	letterRoom = 64 << 10
	// letterWithin is how long a letter that has begun may take to arrive, apart from the time that
	// it waits for memory, and letterWaits how long that may be.
	letterWithin = 15 * time.Second
	letterWaits  = time.Minute
)

// postRoom is the memory for letters that all connections share. A letter takes bytes as a whole
// before they are read, and then parsed. Whoever holds parsed waits for nothing, and whoever holds
// bytes for nothing but their arrival, which is bounded, and for parsed. So nobody waits for good.
// And no host takes more than the bytes of one letter: others do not wait for one that sends slowly.
type postRoom struct {
	bytes, parsed *semaphore.Weighted
	turns         *shares.Of[string] // by sending host: one large letter at a time
}

func newPostRoom(bytes, parsed int64) *postRoom {
	return &postRoom{bytes: semaphore.NewWeighted(bytes), parsed: semaphore.NewWeighted(parsed), turns: shares.New[string](1)}
}

// takeTurn waits for a host's turn and for n bytes, and returns what gives them back.
func (r *postRoom) takeTurn(ctx context.Context, host string, n int) (back func(), err error) {
	end, err := r.turns.Take(ctx, host)
	if err != nil {
		return nil, err
	}
	if err := r.bytes.Acquire(ctx, int64(n)); err != nil {
		end()
		return nil, err
	}
	return func() { r.bytes.Release(int64(n)); end() }, nil
}

// post reads the letters of one connection, within the memory that all connections share. It is for
// one goroutine.
type post struct {
	conn net.Conn      // for deadlines; nil: none
	r    *bufio.Reader // of conn
	room *postRoom     // shared by all
	// vet judges a letter by what says between whom it goes; nothing else of it is there yet. A
	// letter that is not wanted is skipped, an error ends the connection.
	vet func(head *letter) (wanted bool, err error)

	back   func() // gives back the bytes of the last letter; nil: they were the connection's own
	parsed int64  // what its parsed form takes
	buf    []byte // at most letterRoom of it are kept from letter to letter
}

// readLetter returns the next letter that is wanted. Its memory counts until done is called, which
// must happen after an error too. It blocks without limit for a letter to begin.
func (p *post) readLetter(ctx context.Context) (*letter, error) {
	for {
		n, wanted, err := p.readHead()
		if err != nil {
			return nil, err
		}
		if wanted {
			return p.readRest(ctx, n)
		}
		if _, err := p.r.Discard(n - len(p.buf)); err != nil {
			return nil, err
		}
	}
}

// readHead reads the size of the next letter and its first bytes, and reports whether it is wanted.
func (p *post) readHead() (n int, wanted bool, err error) {
	var size [4]byte
	if err := p.deadline(0); err != nil {
		return 0, false, err
	}
	if _, err := io.ReadFull(p.r, size[:]); err != nil {
		return 0, false, err
	}
	if n = int(binary.BigEndian.Uint32(size[:])); n > maxLetter {
		return 0, false, fmt.Errorf("%w: %d bytes, at most %d are allowed", errLetter, n, maxLetter)
	}
	if err := p.deadline(letterWithin); err != nil {
		return 0, false, err
	}
	p.buf = append(p.buf[:0], make([]byte, min(n, letterHead))...)
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		return 0, false, err
	}
	if err := checkVersion(p.buf); err != nil {
		return 0, false, err
	}
	head := parser{b: p.buf}
	l := head.address()
	if head.failed {
		return 0, false, errLetter
	}
	wanted, err = p.vet(l)
	return n, wanted, err
}

// readRest reads and parses a letter of n bytes, of which the first are in p.buf.
func (p *post) readRest(ctx context.Context, n int) (*letter, error) {
	waiting, cancel := context.WithTimeout(ctx, letterWaits)
	defer cancel()
	at := len(p.buf)
	if n > letterRoom {
		l := parser{b: p.buf}
		back, err := p.room.takeTurn(waiting, l.address().from, n)
		if err != nil {
			return nil, noMemory(ctx, n, err)
		}
		p.back = back
		p.buf = append(make([]byte, 0, n), p.buf...)
		if err := p.deadline(letterWithin); err != nil {
			return nil, err
		}
	}
	p.buf = append(p.buf, make([]byte, n-at)...)
	if _, err := io.ReadFull(p.r, p.buf[at:]); err != nil {
		return nil, err
	}
	cost, err := costOfLetter(p.buf)
	if err != nil {
		return nil, err
	}
	if err := p.room.parsed.Acquire(waiting, int64(cost)); err != nil {
		return nil, noMemory(ctx, cost, err)
	}
	p.parsed = int64(cost)
	return parseLetter(p.buf)
}

// noMemory is the error of waiting for n bytes, unless the proxy ends.
func noMemory(ctx context.Context, n int, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return reason.Errorf(reason.Memory, "a message of a site: no %d bytes of memory within %v: %w", n, letterWaits, err)
}

// deadline bounds the time for reading from now on; 0: it is not bounded.
func (p *post) deadline(within time.Duration) error {
	switch {
	case p.conn == nil:
		return nil
	case within == 0:
		return p.conn.SetReadDeadline(time.Time{})
	}
	return p.conn.SetReadDeadline(time.Now().Add(within))
}

// done gives back the memory of the last letter, which must not be used any more.
func (p *post) done() {
	p.room.parsed.Release(p.parsed)
	p.parsed = 0
	if p.back != nil {
		p.back()
		p.back, p.buf = nil, nil
	}
}

// costOfLetter returns the memory that a letter takes once parsed, by parsing it without keeping
// anything.
func costOfLetter(b []byte) (int, error) {
	if err := checkVersion(b); err != nil {
		return 0, err
	}
	p := parser{b: b, counting: true}
	if p.letter(); p.failed {
		return 0, errLetter
	}
	if p.cost > letterMemory {
		return 0, fmt.Errorf("%w: it takes %d bytes of memory, at most %d are allowed", errLetter, p.cost, letterMemory)
	}
	return p.cost, nil
}

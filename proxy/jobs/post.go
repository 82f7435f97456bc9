package jobs

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// postMemory is what all letters take together that are being read or heard:
	// their bytes, and what they are once they are parsed, many times as much.
	// Further ones wait, and block their senders.
	postMemory = 192 << 20
	// letterMemory is what one takes at most once it is parsed.
	letterMemory = 128 << 20
	// letterStep is how much of a letter is read at a time, as it comes and
	// whatever it claims to hold.
	letterStep = 1 << 20
	// letterWithin is how long a letter that has begun may take to come whole,
	// and how long it waits for memory.
	letterWithin = 15 * time.Second
	// letterRoom is how large a buffer is that is kept from letter to letter.
	letterRoom = 64 << 10
)

// A post reads the letters of one connection within a bound that all share.
type post struct {
	conn  net.Conn  // for deadlines; nil: none
	r     io.Reader // of conn
	bound *semaphore.Weighted
	held  int64 // of bound
	buf   []byte
}

// readLetter returns the next letter. It counts until done is called, which it must be
// after an error too.
func (p *post) readLetter(ctx context.Context) (*letter, error) {
	var head [4]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > maxLetter {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are allowed", errLetter, n, maxLetter)
	}
	ctx, cancel := context.WithTimeout(ctx, letterWithin)
	defer cancel()
	if p.conn != nil {
		if err := p.conn.SetReadDeadline(time.Now().Add(letterWithin)); err != nil {
			return nil, err
		}
	}
	p.buf = p.buf[:0]
	for len(p.buf) < n {
		at, step := len(p.buf), min(n-len(p.buf), letterStep)
		if err := p.reserve(ctx, 2*step); err != nil { // the buffer grows by half
			return nil, err
		}
		p.buf = append(p.buf, make([]byte, step)...)
		if _, err := io.ReadFull(p.r, p.buf[at:]); err != nil {
			return nil, err
		}
	}
	if p.conn != nil {
		if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
			return nil, err
		}
	}
	cost, err := costOfLetter(p.buf)
	if err != nil {
		return nil, err
	}
	if err := p.reserve(ctx, cost); err != nil {
		return nil, err
	}
	return parseLetter(p.buf)
}

func (p *post) reserve(ctx context.Context, n int) error {
	if err := p.bound.Acquire(ctx, int64(n)); err != nil {
		return fmt.Errorf("a message of a site: no memory within the bound of %d bytes for %d more: %w", postMemory, n, err)
	}
	p.held += int64(n)
	return nil
}

// done says that the last letter is not used any more.
func (p *post) done() {
	p.bound.Release(p.held)
	p.held = 0
	if cap(p.buf) > letterRoom {
		p.buf = nil
	}
}

// costOfLetter returns what a letter takes once it is parsed, without parsing it.
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

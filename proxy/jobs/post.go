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
	// postMemory bounds the memory of all letters that are being read or handled: their bytes, and
	// their parsed form, which is many times as large. Beyond it readers wait, and thereby block
	// their senders.
	postMemory = 192 << 20
	// letterMemory bounds the parsed form of one letter.
	letterMemory = 128 << 20
	// letterStep is how much of a letter is read, and its memory reserved, at a time: a size that
	// is merely claimed costs nothing.
	letterStep = 1 << 20
	// letterWithin is how long a letter that has begun may take to arrive completely, and how long
	// it waits for memory.
	letterWithin = 15 * time.Second
	// letterRoom is the largest buffer that is kept from letter to letter.
	letterRoom = 64 << 10
)

// post reads the letters of one connection, within the memory that all connections share. It is for
// one goroutine.
type post struct {
	conn  net.Conn            // for deadlines; nil: none
	r     io.Reader           // of conn
	bound *semaphore.Weighted // shared by all
	held  int64               // what this post has acquired of bound
	buf   []byte
}

// readLetter returns the next letter. Its memory counts until done is called, which must happen
// after an error too. It blocks without limit for a letter to begin, and for letterWithin once it
// has.
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
		// Memory is reserved before it is allocated, step by step, so that a letter which never
		// comes completely costs little.
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
	// Parsing takes many times the memory of the bytes, so it is reserved as well.
	cost, err := costOfLetter(p.buf)
	if err != nil {
		return nil, err
	}
	if err := p.reserve(ctx, cost); err != nil {
		return nil, err
	}
	return parseLetter(p.buf)
}

// reserve acquires n bytes of the bound, or waits.
func (p *post) reserve(ctx context.Context, n int) error {
	if err := p.bound.Acquire(ctx, int64(n)); err != nil {
		return fmt.Errorf("a message of a site: no memory within the bound of %d bytes for %d more: %w", postMemory, n, err)
	}
	p.held += int64(n)
	return nil
}

// done releases the memory of the last letter, which must not be used any more.
func (p *post) done() {
	p.bound.Release(p.held)
	p.held = 0
	if cap(p.buf) > letterRoom {
		p.buf = nil
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

package relay

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// waking interrupts a direction that waits for its source's next bytes, by the read deadline. A Wake
// is never lost: wanted stays set until the direction is about to wait, or has been woken.
type waking struct {
	mu     sync.Mutex // guards the rest
	parked net.Conn   // on which the direction waits, between messages
	wanted bool
}

// Wake has the direction to Far run soon, also while the job sends nothing, so that it asks its
// [Initiator] and [Gatherer] and sees a Pass. It may be called by any goroutine, before, during and
// after Run.
func (c *Conn) Wake() { c.waking.wake() }

// wake has the direction run soon.
func (w *waking) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = true
	if w.parked != nil {
		_ = w.parked.SetReadDeadline(time.Now()) // a connection that is closed wakes by itself
	}
}

// park notes that the direction is about to wait on conn. It returns false where a Wake has come,
// and it must not wait.
func (w *waking) park(conn net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted {
		w.wanted = false
		return false
	}
	w.parked = conn
	return true
}

// unpark reports whether a Wake came during the wait, and clears the deadline that it set.
func (w *waking) unpark() (woken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if woken = w.wanted; woken {
		_ = w.parked.SetReadDeadline(time.Time{})
	}
	w.parked, w.wanted = nil, false
	return woken
}

// await reads more. Between messages, and while none of the job's is buffered, it first sends the
// messages of the initiator. When woken, it returns without having read anything.
func (d *direction) await() error {
	if n := d.in.w - d.in.r; d.window != nil && n >= lacksRoom {
		d.window.MakeRoom(n)
	}
	if d.waking == nil || !d.side.between() || d.passing == nil && d.gatherer == nil && d.stage == nil && d.in.r < d.in.w {
		return d.fill()
	}
	if d.initiator != nil && d.in.r == d.in.w {
		if err := d.initiate(); err != nil {
			return err
		}
	}
	if !d.waking.park(d.src) {
		return nil
	}
	err := d.fill()
	switch woken := d.waking.unpark(); {
	// A link that broke sets the same deadline, which unpark may have cleared. It notes before that
	// it is broken, so this is seen here, or its deadline comes after the clearing.
	case woken && d.keeping.isBroken():
		return ErrBroken
	case woken && errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return err
}

// initiate sends all messages that the sender has of its own.
func (d *direction) initiate() error {
	for {
		head, ok := d.initiator.Initiate(nil)
		if !ok {
			return nil
		}
		d.out.taken(appendCommand(d.out.space(), 0, head))
		if err := d.flush(); err != nil {
			return err
		}
	}
}

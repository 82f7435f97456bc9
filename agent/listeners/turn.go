package listeners

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/handover"
)

// errSuperseded is sent to a waiting proxy when a newer one takes its place: only the latest
// version is wanted.
var errSuperseded = errors.New("another proxy is waiting to take over")

// A successor is a proxy that waits for all others to leave. Replacing a proxy by a successor,
// rather than by killing it first, keeps the time without a proxy short: the new process has
// already started and read its configuration when its turn comes.
//
// At most one of the channels is closed, under Listeners.mu, by whoever takes the successor out
// of Listeners.next.
type successor struct {
	turn   chan struct{} // closed when its turn has come
	refuse chan struct{} // closed when another successor takes its place
}

// awaitTurn asks the host's proxies to end in order and tells the successor at conn when they
// are gone. The successor then connects again, as a proxy like any other. It blocks until then,
// or until the successor hangs up, is superseded, or the agent ends.
func (l *Listeners) awaitTurn(conn *handover.Conn, who *unix.Ucred) error {
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	l.log.Info("proxy is waiting for its turn", "pid", who.Pid, "uid", who.Uid)
	s := &successor{make(chan struct{}), make(chan struct{})}
	if !l.enterNext(s) {
		return nil
	}
	defer l.leaveNext(s)
	if err := conn.Send(handover.Message{Kind: handover.Hello, Version: handover.Version, Turns: true}, nil); err != nil {
		return err
	}
	hungUp := make(chan struct{})
	go func() { defer close(hungUp); conn.Receive() }() // a successor sends nothing more: any return is its end
	var err error
	select {
	case <-s.turn:
		err = conn.Send(handover.Message{Kind: handover.Turn}, nil)
	case <-s.refuse:
		err = refuse(conn, fmt.Errorf("process %d: %w", who.Pid, errSuperseded))
	case <-hungUp:
		l.log.Warn("proxy exited before its turn", "pid", who.Pid)
	case <-l.over:
	}
	conn.Close()
	<-hungUp
	return err
}

// enterNext makes s the successor, displacing an earlier one, and asks the other proxies to
// end. It returns false if this agent serves no proxies any more. Without another proxy the
// turn comes at once.
func (l *Listeners) enterNext(s *successor) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	// Of two that wait, the later one was started by whoever knows better.
	if l.next != nil {
		close(l.next.refuse)
	}
	l.next = s
	for other := range l.proxies {
		l.haveYield(other)
	}
	l.giveTurn()
	return true
}

// leaveNext removes s, unless it was given its turn or superseded already.
func (l *Listeners) leaveNext(s *successor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == s {
		l.next = nil
	}
}

// haveYield asks a proxy to end in order, if a successor waits and the proxy's version knows
// the message. One that does not know it keeps its successor waiting until it ends. The caller
// holds l.mu.
func (l *Listeners) haveYield(conn *handover.Conn) {
	if l.next == nil || !l.yields[conn] {
		return
	}
	if err := conn.Send(handover.Message{Kind: handover.Yield}, nil); err != nil {
		conn.Close() // its reader fails and dismisses it
	}
}

// giveTurn gives the successor its turn if no other proxy is connected. The caller holds l.mu.
func (l *Listeners) giveTurn() {
	if l.next != nil && len(l.proxies) == 0 {
		close(l.next.turn)
		l.next = nil
	}
}

// outlast waits for the process of a proxy that has hung up to exit, if a successor waits:
// until then the old process still has its ports and its lock on the state files.
func (l *Listeners) outlast(p *peer) {
	l.mu.Lock()
	waited := l.next != nil
	l.mu.Unlock()
	if waited && p.pidfd >= 0 {
		p.gone(diesWithin)
	}
}

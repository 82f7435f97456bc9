package listeners

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/handover"
)

// errSuperseded is the answer to a waiting proxy when another one starts to wait.
var errSuperseded = errors.New("another proxy has come to take its turn")

// A successor is a proxy that waits until no other one is there.
type successor struct {
	turn   chan struct{} // closed when it is its turn
	refuse chan struct{} // closed when another takes its place
}

// awaitTurn has the proxies of this host end in order, and tells one that waits when
// they are gone.
func (l *Listeners) awaitTurn(conn *handover.Conn, who *unix.Ucred) error {
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	l.log.Info("a proxy waits for its turn", "pid", who.Pid, "uid", who.Uid)
	s := &successor{make(chan struct{}), make(chan struct{})}
	if !l.enterNext(s) {
		return nil
	}
	defer l.leaveNext(s)
	if err := conn.Send(handover.Message{Kind: handover.Hello, Version: handover.Version, Turns: true}, nil); err != nil {
		return err
	}
	hungUp := make(chan struct{})
	go func() { defer close(hungUp); conn.Receive() }() // it says nothing more
	var err error
	select {
	case <-s.turn:
		err = conn.Send(handover.Message{Kind: handover.Turn}, nil)
	case <-s.refuse:
		err = refuse(conn, fmt.Errorf("process %d: %w", who.Pid, errSuperseded))
	case <-hungUp:
		l.log.Warn("a proxy has ended before its turn", "pid", who.Pid)
	case <-l.over:
	}
	conn.Close()
	<-hungUp
	return err
}

// enterNext has a proxy be the one that waits, for which the others are to end; false
// where this agent serves none any more.
func (l *Listeners) enterNext(s *successor) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
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

// leaveNext forgets a proxy that waits no more.
func (l *Listeners) leaveNext(s *successor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == s {
		l.next = nil
	}
}

// haveYield asks a proxy to end in order, where another waits and it knows how; the
// caller holds l.mu.
func (l *Listeners) haveYield(conn *handover.Conn) {
	if l.next == nil || !l.yields[conn] {
		return
	}
	if err := conn.Send(handover.Message{Kind: handover.Yield}, nil); err != nil {
		conn.Close() // its reader takes it off the list
	}
}

// giveTurn has the proxy that waits begin where no other is there; the caller holds
// l.mu.
func (l *Listeners) giveTurn() {
	if l.next != nil && len(l.proxies) == 0 {
		close(l.next.turn)
		l.next = nil
	}
}

// outlast waits until the process of a proxy that has hung up is gone, where another
// waits: it has its ports and files until then.
func (l *Listeners) outlast(p *peer) {
	l.mu.Lock()
	waited := l.next != nil
	l.mu.Unlock()
	if waited && p.pidfd >= 0 {
		p.gone(diesWithin)
	}
}

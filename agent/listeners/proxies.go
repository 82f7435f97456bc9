package listeners

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/handover"
)

// attend talks with one proxy until it hangs up, and then cleans up after it. A connection that
// sends nothing is only a probe whether somebody answers, as listenUnix makes one.
//
// The deferred calls run in reverse: the pings stop, connections that the proxy left are taken
// over (which waits for its process to exit), and only then dismiss lets the next proxy have
// its turn.
func (l *Listeners) attend(conn *handover.Conn) error {
	defer conn.Close()
	who, err := conn.Peer()
	if err != nil {
		return err
	}
	// SO_PEERCRED has the credentials at connect time. They decide who may accept the job's
	// connections.
	if who.Uid != 0 && int(who.Uid) != l.opts.UID && int(who.Uid) != os.Geteuid() {
		return refuse(conn, fmt.Errorf("process %d of user %d: listeners are for user %d", who.Pid, who.Uid, l.opts.UID))
	}
	// Anything that connects without saying hello must not hold a goroutine for ever.
	if err := conn.SetReadDeadline(time.Now().Add(l.opts.Patience)); err != nil {
		return err
	}
	m, _, err := conn.Receive()
	if errors.Is(err, io.EOF) {
		return nil // looked whether somebody answers
	}
	if err != nil {
		return err
	}
	if m.Kind != handover.Hello || m.Version != handover.Version {
		return refuse(conn, fmt.Errorf("process %d speaks version %d of the protocol, the agent speaks %d", who.Pid, m.Version, handover.Version))
	}
	// It is a successor. It gets no listeners on this connection, and comes again when its turn
	// has come.
	if m.Waits {
		return l.awaitTurn(conn, who)
	}
	if err := l.admit(conn, m); err != nil {
		return err
	}
	l.log.Info("proxy connected", "pid", who.Pid, "uid", who.Uid)
	defer l.dismiss(conn)
	defer l.carried.leaves(conn)
	p := openPeer(conn, who.Pid)
	defer p.close()
	defer l.outlast(p)
	l.kept.comes(conn, p, m.Keeps > 0)
	defer l.kept.leaves(conn, keptFor)
	s := &silence{l: l, peer: p, wanted: l.opts.HangAfter}
	// This very process, or one that cannot be signalled: it is never killed.
	if p.pidfd < 0 {
		s.wanted = 0
	}
	stop := ping(conn, l.pingEvery())
	defer stop()
	return l.converse(conn, s)
}

// pingEvery returns the interval of pings: a second, or a quarter of HangAfter if that is
// shorter, so that several pings fall into the silence that is judged.
func (l *Listeners) pingEvery() time.Duration {
	if l.opts.HangAfter > 0 {
		return min(time.Second, l.opts.HangAfter/4)
	}
	return time.Second
}

// ping sends pings until stop is called or a send fails. stop closes conn, which unblocks a
// send to a proxy that does not read, and waits for the goroutine.
func ping(conn *handover.Conn, pingEvery time.Duration) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		every := time.NewTicker(pingEvery)
		defer every.Stop()
		for conn.Send(handover.Message{Kind: handover.Ping}, nil) == nil {
			select {
			case <-every.C:
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); conn.Close(); <-ended }
}

// converse reads a proxy's messages until it hangs up (nil) or is stuck. Deadlines apply only
// after the first pong: a proxy of a version that does not answer pings is never taken for
// stuck. Files that come with a message are owned by the case that handles it.
func (l *Listeners) converse(conn *handover.Conn, s *silence) error {
	answers := false
	ended := make(chan struct{})
	defer close(ended)
	owners := l.owners(conn, ended)
	s.heard()
	for {
		var deadline time.Time
		if answers {
			deadline = s.until()
		}
		if err := conn.SetReadDeadline(deadline); err != nil {
			return err
		}
		m, files, err := conn.ReceiveAll()
		switch {
		// The kernel reports the reset before the data that is queued behind it.
		case errors.Is(err, unix.ECONNRESET):
			continue // it was killed with messages unread; its own last messages follow
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := s.over(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		s.heard()
		switch m.Kind {
		case handover.Pong:
			answers = true
			s.look()
			l.carried.tells(conn, m.Carried)
			if err := l.setCrowded(conn, m.Crowded); err != nil {
				l.log.Warn("cannot update the redirection of connects", "error", err)
			}
			continue
		case handover.PartKeys:
			l.parts.addRanges(m.Job, m.Parts)
			continue
		case handover.Full:
			if err := l.setFull(conn, m.On); err != nil {
				l.log.Warn("cannot update the redirection of connects", "error", err)
			}
			continue
		case handover.Spares:
			if err := l.setSpares(conn, m.On); err != nil {
				l.log.Warn("cannot update the redirection of connects", "error", err)
			}
			continue
		case handover.Unneeded:
			l.noteUnneeded(handover.Source{Netns: m.Netns, Address: m.Address})
			continue
		case handover.Owner:
			if err := owners.answer(m); err != nil {
				return err
			}
			continue
		case handover.Stays:
			if err := owners.stays(m); err != nil {
				return err
			}
			continue
		case handover.Keep:
			if err := l.kept.hold(conn, m.ID, files); err != nil {
				l.log.Warn("a connection would not survive a kill of its proxy", "error", err)
			}
			continue
		case handover.Drop:
			l.kept.drop(conn, m.ID)
			continue
		// The one message that is answered below: the proxy moves no key before the kernel has
		// the policy.
		case handover.FailClosed:
		default:
			for _, f := range files {
				f.Close()
			}
			return fmt.Errorf("process %d sent a %q message, which no proxy sends", s.peer.pid, m.Kind)
		}
		answer := handover.Message{Kind: handover.Result, Sequence: m.Sequence}
		if err := l.setFailClosed(conn, redirect.GroupID(m.Cgroup), m.On); err != nil {
			answer.Error = err.Error()
		}
		if err := conn.Send(answer, nil); err != nil {
			return err
		}
	}
}

// refuse sends the proxy the reason for which it is turned away, and returns it.
func refuse(conn *handover.Conn, why error) error {
	return errors.Join(why, conn.Send(handover.Message{Kind: handover.Refused, Error: why.Error()}, nil))
}

// admit adds a proxy and hands it all listeners. The first proxy makes reconcile open them.
// hello has the abilities that it declared.
//
// The order is part of the protocol: hello, titles, listeners, and Complete when the list is
// whole. The proxy may drop listeners of an earlier agent at Complete, so it must not come
// before the first Reconcile.
func (l *Listeners) admit(conn *handover.Conn, hello handover.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	if err := conn.Send(handover.Message{Kind: handover.Hello, Version: handover.Version, Owners: l.tells, Stays: true, PartKeys: true, On: true, Keeps: l.kept.most, Holds: keptFor.Milliseconds()}, nil); err != nil {
		return err
	}
	closed := l.closedCgroups()
	// Before the listeners: a connection that is accepted at once already needs its job's name.
	if err := l.tellTitles(conn); err != nil {
		return err
	}
	for _, o := range l.listeners() {
		// A version that does not know mesh listeners would take one for a job's.
		if o.mesh && !hello.Mesh {
			continue
		}
		for i := range o.sockets {
			m, f := o.message(i, closed)
			if err := conn.Send(m, f); err != nil {
				return err
			}
		}
	}
	l.proxies[conn] = true
	if hello.Mesh {
		l.linking[conn] = true
	}
	l.yields[conn], l.spares[conn] = hello.Yields, hello.On
	// A successor may have come while this one was being admitted.
	l.haveYield(conn)
	if err := l.steer(); err != nil {
		l.log.Warn("cannot update the redirection of connects", "error", err)
	}
	if l.without != nil {
		l.without.Stop()
		l.without = nil
	}
	if !l.reconciled {
		return nil // Reconcile will open listeners and send Complete
	}
	if err := l.reconcile(); err != nil {
		l.log.Warn("cannot open listeners for some processes", "error", err)
	}
	l.sendToAll(handover.Message{Kind: handover.Complete}, nil)
	return nil
}

// dismiss removes a proxy. After the last one, the listeners stay open for Options.Grace:
// connects wait in their backlogs for the next proxy, but not for long.
func (l *Listeners) dismiss(conn *handover.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.proxies, conn)
	delete(l.crowded, conn)
	delete(l.linking, conn)
	delete(l.yields, conn)
	delete(l.spares, conn)
	delete(l.closing, conn) // cgroups that it closed stay closed: only a proxy that knows its jobs may open them
	if l.closed {
		return
	}
	if err := l.steer(); err != nil {
		l.log.Warn("cannot update the redirection of connects", "error", err)
	}
	// The others go on serving the same listeners.
	if len(l.proxies) > 0 {
		return
	}
	l.giveTurn()
	// The callback compares itself with l.without: a timer that fires while admit holds the
	// lock, just before Stop, must not close the new proxy's listeners.
	var timer *time.Timer
	timer = time.AfterFunc(l.opts.Grace, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.without != timer || l.closed || !l.reconciled {
			return
		}
		l.without = nil
		l.log.Warn("no proxy within the grace period; connects go direct, or fail if keys are displaced", "after", l.opts.Grace)
		if err := l.reconcile(); err != nil {
			l.log.Warn("closing listeners", "error", err)
		}
	})
	l.without = timer
}

// setFull records whether a proxy takes more connections, and steers connects accordingly.
func (l *Listeners) setFull(conn *handover.Conn, full bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.proxies[conn]; !there || l.closed {
		return nil
	}
	l.proxies[conn] = !full
	if full {
		l.log.Warn("a proxy accepts no more connections; if no other one does, connects go direct, or fail if keys are displaced")
	} else {
		l.log.Info("a proxy accepts connections again")
	}
	return l.steer()
}

// setCrowded records of which cgroup a proxy takes no more connections, since it has its share, and
// steers connects accordingly. 0: it takes those of all.
func (l *Listeners) setCrowded(conn *handover.Conn, cgroup uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.proxies[conn]; !there || l.closed || l.crowded[conn] == cgroup {
		return nil
	}
	if delete(l.crowded, conn); cgroup != 0 {
		l.crowded[conn] = cgroup
		l.log.Warn("a cgroup has its share of the proxy's connections; its connects go direct, or fail if keys are displaced", "cgroup", cgroup)
	} else {
		l.log.Info("all cgroups have less than their share of the proxy's connections again")
	}
	return l.steer()
}

// setFailClosed sets what happens to a cgroup's connects when no proxy can take them: with on
// they fail instead of going direct, which would bypass the routing of displaced keys. The
// kernel's policy goes back to open only when the last proxy that asked for it withdraws.
func (l *Listeners) setFailClosed(conn *handover.Conn, id redirect.GroupID, on bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.proxies[conn]; !there || l.closed {
		return net.ErrClosed
	}
	if l.closing[conn] == nil {
		l.closing[conn] = map[redirect.GroupID]bool{}
	}
	if on {
		l.closing[conn][id] = true
	} else {
		delete(l.closing[conn], id)
		for _, groups := range l.closing {
			if groups[id] {
				return nil
			}
		}
	}
	return l.setPolicy(id, on)
}

// closedCgroups returns the cgroups that fail closed because a proxy has asked for it, perhaps one
// that has ended.
func (l *Listeners) closedCgroups() map[uint64]bool {
	groups, err := l.opts.Redirect.Groups()
	if err != nil {
		l.log.Warn("cannot read the policies of cgroups", "error", err)
	}
	closed := map[uint64]bool{}
	for _, g := range groups {
		if g.Policy.FailClosed {
			closed[uint64(g.ID)] = true
		}
	}
	return closed
}

// setPolicy writes a group's policy to the kernel's map. Closing a cgroup that is not
// redirected is an error; opening one is not, since nothing holds its connects back. The caller
// holds l.mu.
func (l *Listeners) setPolicy(id redirect.GroupID, on bool) error {
	groups, err := l.opts.Redirect.Groups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.ID == id {
			g.Policy.FailClosed = on
			return l.opts.Redirect.SetPolicy(id, g.Policy)
		}
	}
	if !on {
		return nil
	}
	return fmt.Errorf("cgroup number %d is not redirected", id)
}

// hasRoom reports whether connects of a group should go to its listeners: some proxy takes more of
// them, or there is none, in which case the next one may (the backlog holds connects until then).
// The caller holds l.mu.
func (l *Listeners) hasRoom(id redirect.GroupID) bool {
	for conn, takes := range l.proxies {
		if takes && l.crowded[conn] != uint64(id) {
			return true
		}
	}
	return len(l.proxies) == 0
}

// steer adds to the kernel's map the listeners of groups for which there is room, and removes the
// others, so that connects go past the proxies. Failures for single listeners are joined and do not
// stop the others. The caller holds l.mu.
func (l *Listeners) steer() error {
	var failed error
	for at, o := range l.open {
		room := l.hasRoom(at.group)
		if room == o.steered {
			continue
		}
		var err error
		if room {
			err = l.opts.Redirect.SetListener(o.cookie, at.group, o.ports())
		} else {
			err = l.opts.Redirect.RemoveListener(o.cookie, at.group)
		}
		if err == nil {
			o.steered = room
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// sendToAll sends a message, with f unless it is nil, to every proxy that understands it. A
// proxy that cannot take it is hung up on rather than left with a wrong view; it connects again
// and gets everything. The caller holds l.mu.
func (l *Listeners) sendToAll(m handover.Message, f *os.File) {
	for conn := range l.proxies {
		if m.Mesh && !l.linking[conn] {
			continue
		}
		if err := conn.Send(m, f); err != nil {
			if !l.closed { // both may end at the same time
				l.log.Warn("a proxy does not read from the agent", "error", err)
			}
			conn.Close() // its reader fails and dismisses it
		}
	}
}

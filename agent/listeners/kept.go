package listeners

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/handover"
)

// This file keeps a job's TCP connections open across the death of the proxy that carried them
// (the proxy's half is proxy/keep). A proxy sends the agent a duplicate of each connection's
// socket together with a page of shared memory that has its state. When the proxy ends, killed
// or in order, the agent gives both descriptors to the next proxy, which continues where the
// first one stopped. The agent reads neither.
//
// The duplicate keeps the connection open for the peer: it sees a pause, not a reset. So the
// agent must not hold it for a proxy that merely hung up but still lives and uses the same
// socket, nor longer than keptFor, during which the peer waits for nothing.

// Bounds. A kept connection costs two descriptors. keptShare gives each proxy's connections a
// quarter of the agent's descriptors, after keptApart for everything else, so that two proxies
// fit while one replaces the other.
const (
	keptApart = 512
	keptShare = 8
	mostKept  = 16384
	// keptFor is how long orphaned connections wait for the next proxy. It is longer than
	// connects wait in a listener's queue (Options.Grace): those can still go direct, a kept
	// connection has no other way.
	keptFor = 10 * time.Second
	// diesWithin is how long a proxy that has hung up may take to exit. A large process needs
	// time to tear down its memory.
	diesWithin = 5 * time.Second
)

// keptPair are the descriptors of a connection's socket and of its page.
type keptPair [2]int

func (p keptPair) close() {
	unix.Close(p[0])
	unix.Close(p[1])
}

// keptOf is the state of one connected proxy. pairs is nil once the agent has given the
// connections up.
type keptOf struct {
	peer  *peer
	takes bool // the proxy's version can take over connections that others left
	// relies is set while the proxy counts on this agent to hold its connections, and may exit
	// and leave them. An agent that ends must wait for such a proxy.
	relies bool
	pairs  map[uint64]keptPair
}

// kept holds connections for the proxies of a host. The zero value holds nothing; most must be
// set before use.
//
// A pair is owned by exactly one of here and orphans, and closed when it leaves them. mu is a
// leaf lock: it may be taken under Listeners.mu, and is held while descriptors are sent.
type kept struct {
	most int // connections of one proxy; 0: none are held

	mu      sync.Mutex // guards the rest
	here    map[*handover.Conn]*keptOf
	orphans map[uint64]keptPair // of proxies that have ended, while there is no other proxy
	late    *time.Timer         // closes orphans when keptFor is over; nil when there are none
	given   uint64              // connections handed to a later proxy
	lost    uint64              // orphans closed for want of one
	closed  bool
	changed chan struct{} // closed when here or orphans changes; nil: nobody waits
}

// affordableKept returns how many connections of one proxy fit the process's descriptor limit.
func affordableKept() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(max(int64(limit.Cur), keptApart)-keptApart, mostKept*keptShare) / keptShare)
}

// comes registers a proxy and hands it the orphans. It does nothing for a proxy that cannot
// take connections, or whose process cannot be watched: without a pidfd the agent could not
// tell whether it is dead, and two processes might write to one connection.
func (k *kept) comes(conn *handover.Conn, p *peer, takes bool) {
	if k.most == 0 || !takes || p.pidfd < 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	if k.here == nil {
		k.here = map[*handover.Conn]*keptOf{}
	}
	k.here[conn] = &keptOf{peer: p, takes: takes, pairs: map[uint64]keptPair{}}
	k.give(conn, k.orphans)
	k.orphans = nil
	k.notify()
	if k.late != nil {
		k.late.Stop()
		k.late = nil
	}
}

// give hands connections to a proxy and holds them for it from then on. It then tells the proxy
// whether it has got everything (AllKept). It does not say so while another proxy is
// registered, which may still leave some or may be dead with Keep messages unread in its
// socket. The caller holds k.mu.
func (k *kept) give(conn *handover.Conn, pairs map[uint64]keptPair) {
	to := k.here[conn]
	for id, p := range pairs {
		to.pairs[id] = p // if the send fails, the proxy is gone, and the next one gets the pair
		if conn.SendRights(handover.Message{Kind: handover.Kept, ID: id}, p[0], p[1]) == nil {
			k.given++
		}
	}
	if len(k.here) == 1 {
		_ = conn.Send(handover.Message{Kind: handover.AllKept}, nil) // its reader notices
	}
}

// hold takes over a connection and its page from a proxy; files are closed in any case.
// Descriptors that are not a TCP socket are refused. Pairs beyond the bound are dropped without
// an error: that connection then breaks with its proxy, as all of them would without an agent.
func (k *kept) hold(conn *handover.Conn, id uint64, files []*os.File) error {
	pair := keptPair{-1, -1}
	var failed error
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			// A raw duplicate stays out of Go's poller, which would wake up for every byte that
			// arrives on the job's connection.
			e := raw.Control(func(fd uintptr) { pair[i], err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
			err = errors.Join(err, e)
		}
		failed = errors.Join(failed, err, f.Close())
	}
	if failed != nil {
		pair.close()
		return fmt.Errorf("holding a connection: %w", failed)
	}
	// Checked before the lock: a descriptor that is not a job's connection must not be kept
	// open by the agent.
	protocol, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PROTOCOL)
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.here[conn]
	switch {
	case err != nil || protocol != unix.IPPROTO_TCP:
		pair.close()
		return fmt.Errorf("holding a connection: not TCP (protocol %d): %w", protocol, err)
	case of == nil || of.pairs == nil || len(of.pairs) >= k.most: // without pairs this agent ends
		pair.close()
		return nil
	}
	if before, ok := of.pairs[id]; ok {
		before.close()
	}
	of.pairs[id] = pair
	return nil
}

// drop releases a connection that its proxy has closed. Until then the duplicate keeps the
// socket open, so the peer sees the end of the connection only now.
func (k *kept) drop(conn *handover.Conn, id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.here[conn]
	if of == nil {
		return
	}
	if pair, ok := of.pairs[id]; ok {
		pair.close()
		delete(of.pairs, id)
	}
}

// rely records whether a proxy counts on this agent to hold its connections.
func (k *kept) rely(conn *handover.Conn, relies bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if of := k.here[conn]; of != nil {
		of.relies = relies
		k.notify()
	}
}

// notify wakes up awaitHandover. The caller holds k.mu.
func (k *kept) notify() {
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

// awaitHandover blocks until no proxy relies on this agent and all orphans were given away or
// given up. It returns false if that takes longer than within.
func (k *kept) awaitHandover(within time.Duration) bool {
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		k.mu.Lock()
		owed := len(k.orphans) > 0
		for _, of := range k.here {
			owed = owed || of.relies
		}
		// The channel is made under the lock under which the state was read, so that no change
		// between the two is missed.
		if owed && k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		if !owed {
			return true
		}
		select {
		case <-changed:
		case <-late.C:
			return false
		}
	}
}

// leaves handles a proxy that has hung up. It blocks for up to diesWithin until the process is
// gone, then gives its connections to another connected proxy, or makes them orphans for at
// most within. The connections of a proxy that lives on are closed here, since it still uses
// its own descriptors.
func (k *kept) leaves(conn *handover.Conn, within time.Duration) {
	k.mu.Lock()
	of := k.here[conn]
	closed := k.closed
	k.mu.Unlock()
	if of == nil || closed {
		return // nothing is held, or will be: no reason to wait for its exit
	}
	dead := of.peer.gone(diesWithin)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.here, conn)
	defer k.notify()
	// Two processes must never use one connection.
	if !dead || k.closed {
		for _, p := range of.pairs {
			p.close()
		}
		of.pairs = nil
	}
	for other, o := range k.here {
		// Preferably a proxy that is there now. One that has just died as well would only make
		// these wait again.
		if o.takes && !o.peer.gone(0) && !k.closed {
			k.give(other, of.pairs)
			return
		}
	}
	if len(of.pairs) == 0 {
		return
	}
	if k.orphans == nil {
		k.orphans = map[uint64]keptPair{}
	}
	// Under the numbers that the proxy gave them, by which the next one refers to them too.
	for id, p := range of.pairs {
		k.orphans[id] = p
	}
	if k.late == nil {
		k.late = time.AfterFunc(within, k.giveUp)
	}
}

// giveUp closes the orphans. Their peers see the connections break, as they do when a proxy
// dies without an agent.
func (k *kept) giveUp() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.orphans {
		p.close()
		k.lost++
	}
	k.orphans, k.late = nil, nil
	k.notify()
}

// close releases everything. Later calls of comes register nothing.
func (k *kept) close() {
	k.mu.Lock()
	k.closed = true
	if k.late != nil {
		k.late.Stop()
	}
	for _, of := range k.here {
		for _, p := range of.pairs {
			p.close()
		}
		of.pairs = nil
	}
	k.mu.Unlock()
	k.giveUp()
}

// counts returns how many connections are held now, and how many have been given to a later
// proxy or lost for want of one.
func (k *kept) counts() (held int, given, lost uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held = len(k.orphans)
	for _, of := range k.here {
		held += len(of.pairs)
	}
	return held, k.given, k.lost
}

// gone reports whether the process has exited, waiting for at most within. A pidfd becomes
// readable at exit, also before the process is reaped.
func (p *peer) gone(within time.Duration) bool {
	for end := time.Now().Add(within); ; {
		fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(end)).Milliseconds()))
		if errors.Is(err, unix.EINTR) && time.Now().Before(end) {
			continue
		}
		return n > 0
	}
}

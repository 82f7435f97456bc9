package listeners

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/handover"
)

// A proxy has the agent hold duplicates of connections, each with a page of memory,
// which are given to the next proxy when it has ended (proxy/keep): those that outlive
// one that is killed, and those that one which ends in order hands over. The agent
// looks into neither. A proxy that hangs up while it lives leaves nothing.

// Of the descriptors that the agent may have open a quarter is for connections, with
// two each, of a proxy; there are two while one is replaced.
const (
	keptApart = 512
	keptShare = 8
	mostKept  = 16384
	// keptFor is for how long connections are held whose proxy has ended: longer than
	// connects wait for the next one, which can go direct, while held connections
	// cannot.
	keptFor = 10 * time.Second
	// diesWithin is how long a proxy that has hung up may take to be gone.
	diesWithin = 5 * time.Second
)

// keptPair are the descriptors of a connection and its page.
type keptPair [2]int

func (p keptPair) close() {
	unix.Close(p[0])
	unix.Close(p[1])
}

// keptOf is what a proxy has held.
type keptOf struct {
	peer  *peer
	takes bool // it takes what others left
	// relies: it knows that this agent holds connections, and may leave its own
	// behind.
	relies bool
	pairs  map[uint64]keptPair
}

// kept are the held connections. Its zero value holds nothing, and most is to be
// set.
type kept struct {
	most int // of a proxy

	mu      sync.Mutex // guards the rest
	here    map[*handover.Conn]*keptOf
	orphans map[uint64]keptPair // of proxies that have ended, while there is none that takes them
	late    *time.Timer         // closes them
	given   uint64
	lost    uint64
	closed  bool
	changed chan struct{} // closed when something has left here or orphans; nil: nobody waits
}

// affordableKept is how many connections of a proxy can be held.
func affordableKept() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(max(int64(limit.Cur), keptApart)-keptApart, mostKept*keptShare) / keptShare)
}

// comes notes that a proxy is there, and gives it what another left.
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

// give gives connections to a proxy, for which they are held from then on, and tells it
// whether there are no more: not while there is another proxy, which may leave some, or
// is dead and has left some that are still to be read. The caller holds k.mu.
func (k *kept) give(conn *handover.Conn, pairs map[uint64]keptPair) {
	to := k.here[conn]
	for id, p := range pairs {
		to.pairs[id] = p // where it does not get there, that one is gone, and the next gets it
		if conn.SendRights(handover.Message{Kind: handover.Kept, ID: id}, p[0], p[1]) == nil {
			k.given++
		}
	}
	if len(k.here) == 1 {
		_ = conn.Send(handover.Message{Kind: handover.AllKept}, nil) // its reader notices
	}
}

// hold takes a connection and its page. Anything but such a pair, and pairs beyond
// the bound, are not held.
func (k *kept) hold(conn *handover.Conn, id uint64, files []*os.File) error {
	var pair keptPair
	var failed error
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			// Without Go's poller, which would be woken by each byte that comes.
			e := raw.Control(func(fd uintptr) { pair[i], err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
			err = errors.Join(err, e)
		}
		failed = errors.Join(failed, err, f.Close())
	}
	if failed != nil {
		return fmt.Errorf("holding a connection: %w", failed)
	}
	protocol, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PROTOCOL)
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.here[conn]
	switch {
	case err != nil || protocol != unix.IPPROTO_TCP:
		pair.close()
		return fmt.Errorf("holding a connection: it is none of TCP (protocol %d): %w", protocol, err)
	case of == nil || len(of.pairs) >= k.most:
		pair.close()
		return nil
	}
	if before, ok := of.pairs[id]; ok {
		before.close()
	}
	of.pairs[id] = pair
	return nil
}

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

// notify wakes up settle. The caller holds k.mu.
func (k *kept) notify() {
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

// awaitHandover waits until no proxy relies on this agent, and all that others left was given
// away or given up; it returns false where that has not come about within so long.
func (k *kept) awaitHandover(within time.Duration) bool {
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		k.mu.Lock()
		owed := len(k.orphans) > 0
		for _, of := range k.here {
			owed = owed || of.relies
		}
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

// leaves takes what a proxy that has ended had held for the next one, which has so much
// time to come.
func (k *kept) leaves(conn *handover.Conn, within time.Duration) {
	k.mu.Lock()
	of := k.here[conn]
	closed := k.closed
	k.mu.Unlock()
	if of == nil || closed {
		return // the agent does not wait for a proxy that lives on
	}
	dead := of.peer.gone(diesWithin)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.here, conn)
	defer k.notify()
	if !dead || k.closed {
		for _, p := range of.pairs {
			p.close()
		}
		of.pairs = nil
	}
	for other, o := range k.here {
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
	for id, p := range of.pairs {
		k.orphans[id] = p
	}
	if k.late == nil {
		k.late = time.AfterFunc(within, k.giveUp)
	}
}

// giveUp closes what no proxy has come for.
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

// close closes all that is held.
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

// counts returns how many connections are held, and how many were given to another
// proxy and lost for want of one.
func (k *kept) counts() (held int, given, lost uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held = len(k.orphans)
	for _, of := range k.here {
		held += len(of.pairs)
	}
	return held, k.given, k.lost
}

// gone reports whether the process has ended, at the latest after so long.
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

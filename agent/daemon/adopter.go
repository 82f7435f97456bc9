package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"

	"github.com/psidecar/psidecar/page"
)

// AdopterOptions configure an Adopter. All functions are called from Run's goroutine and must
// not block.
type AdopterOptions struct {
	Proc string // a /proc file system that shows the PIDs of this process's namespace
	// Directs returns the connections on which this host's processes send past the proxy.
	Directs func() []DirectConnection
	// Owner returns the process of a connection and the folder of its cgroup.
	Owner func(local, peer netip.AddrPort) (pid int, cgroup string, ok bool)
	// Takes reports whether a proxy now accepts connections of a cgroup.
	Takes func(cgroup string) bool
	// MeshPort is the port at which other hosts' proxies listen. With 0, a proxy is assumed at
	// every host.
	MeshPort uint16
}

// Bounds of what an Adopter does and remembers.
const (
	lookEvery = 100 * time.Millisecond // interval of looking at all direct connections
	mostDone  = 1 << 14                // connections, and places, that are remembered
	atOnce    = 16                     // connections that are ended in one look, each of which stops a thread for a moment
	againFor  = time.Minute            // for how long connections of a process to a place are left alone after one was ended
	closeFor  = 5 * time.Second        // how long a process may take to close a connection that it was told the end of
)

// to identifies where a process connects.
type to struct {
	pid  int
	peer netip.AddrPort
}

// An Adopter ends direct connections so that their processes make them again by way of the
// proxy. The fields above mu belong to Run's goroutine.
type Adopter struct {
	opts  AdopterOptions
	proc  *discover.ProcFS
	peers *peers
	since map[uint64]time.Time // when a connection was first seen, by cookie; at most mostDone
	done  map[uint64]bool      // connections that were ended and may not be closed yet, by cookie
	ended map[to]time.Time     // when a connection to a place was last ended
	last  map[uint64]Reason    // connections that cannot be adopted as long as they live, by cookie

	mu      sync.Mutex        // guards the fields below
	adopted uint64            // connections that were ended and closed
	tries   map[Reason]uint64 // attempts that failed
	now     map[Reason]int    // direct connections at the last look, by why they stay
}

// NewAdopter returns an Adopter; it does nothing before Run.
func NewAdopter(o AdopterOptions) *Adopter {
	return &Adopter{
		opts: o, proc: discover.OpenProc(o.Proc), peers: newPeers(o.MeshPort), since: map[uint64]time.Time{}, done: map[uint64]bool{},
		ended: map[to]time.Time{}, last: map[uint64]Reason{}, tries: map[Reason]uint64{}, now: map[Reason]int{},
	}
}

// Run adopts connections until ctx ends, and then waits for those that are being closed.
func (a *Adopter) Run(ctx context.Context) {
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	var closing sync.WaitGroup
	defer closing.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-every.C:
			a.judgeConnections(ctx, now, &closing)
		}
	}
}

// judgeConnections looks at all direct connections and ends those that may be ended. Each is
// judged twice: first without the kernel, which sorts most of them out for nothing, then with
// the state of its socket. The sockets of a network namespace are dumped once for all its
// connections.
func (a *Adopter) judgeConnections(ctx context.Context, now time.Time, closing *sync.WaitGroup) {
	directs := a.opts.Directs()
	a.dropGone(directs, now)
	sockets := map[string]map[discover.Ends]discover.Connection{} // by the namespace's file
	count, budget := map[Reason]int{}, atOnce
	for _, d := range directs {
		pid, cgroup, ok := a.opts.Owner(d.Local, d.Peer)
		if !ok || a.done[d.Cookie] || d.Peer.Addr().IsLoopback() {
			continue
		}
		where := to{pid, d.Peer}
		why := a.judge(d, kernel{received: leastHandshake, quiet: quietFor}, where, cgroup, now)
		if why != ReasonDue { // no need to ask the kernel
			count[why]++
			continue
		}
		s, known := a.socket(sockets, filepath.Join(a.opts.Proc, strconv.Itoa(pid), "ns/net"), d)
		if !known {
			continue
		}
		why = a.judge(d, kernel{s.Received, s.Unacked > 0 || s.Unsent > 0 || s.Unread > 0, s.Quiet}, where, cgroup, now)
		// Bytes received never become fewer, so this verdict is final.
		if why == ReasonBothWays {
			a.last[d.Cookie] = why
		}
		if why == ReasonDue && budget == 0 {
			why = ReasonBusy
		}
		if why == ReasonDue {
			budget--
			why = a.end(ctx, d, pid, s.Inode, closing)
			if why == ReasonDue {
				a.ended[where] = now
				continue
			}
		}
		count[why]++
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = count
}

// socket returns the kernel's state of a connection. ok is false if it is no longer
// established, has no process any more, or if its addresses now belong to another socket. all
// caches the dump of each namespace during one look.
func (a *Adopter) socket(all map[string]map[discover.Ends]discover.Connection, netns string, d DirectConnection) (s discover.Connection, ok bool) {
	in, asked := all[netns]
	if !asked {
		var err error
		if in, err = discover.Connections(netns); err != nil {
			slog.Debug("cannot adopt connections", "error", err)
		}
		all[netns] = in
	}
	s, ok = in[discover.Ends{Local: d.Local, Peer: d.Peer}]
	return s, ok && s.Established && s.Cookie == d.Cookie && s.Inode != 0
}

// judge collects what decide needs. A final reason from an earlier look stands.
func (a *Adopter) judge(d DirectConnection, k kernel, where to, cgroup string, now time.Time) Reason {
	if why, tried := a.last[d.Cookie]; tried {
		return why
	}
	since, known := a.since[d.Cookie]
	if !known && len(a.since) < mostDone {
		a.since[d.Cookie], since = now, now
	}
	at, again := a.ended[where]
	// Again: this connection was made after one to the same place was ended, so it was not
	// redirected. Ending it too would go on for ever.
	around := around{proxy: a.opts.Takes(cgroup), again: again && now.Sub(at) < againFor && since.After(at), waiting: now.Sub(since)}
	if around.proxy {
		around.peer = a.peers.listens(d.Peer.Addr(), now)
	}
	return decide(d, k, around)
}

// dropGone drops the state of connections that are gone and of places that may be tried again.
func (a *Adopter) dropGone(directs []DirectConnection, now time.Time) {
	there := make(map[uint64]bool, len(directs))
	for _, d := range directs {
		there[d.Cookie] = true
	}
	for cookie := range a.since {
		if !there[cookie] {
			delete(a.since, cookie)
			delete(a.last, cookie)
		}
	}
	for cookie := range a.done {
		if !there[cookie] {
			delete(a.done, cookie)
		}
	}
	for where, at := range a.ended {
		if now.Sub(at) > againFor {
			delete(a.ended, where)
		}
	}
}

// end ends a connection and returns ReasonDue, or returns the reason for which it stays. It
// blocks for as long as the process's thread is stopped, some milliseconds, but not until the
// process has closed the connection; closing waits for that.
func (a *Adopter) end(ctx context.Context, d DirectConnection, pid int, inode uint32, closing *sync.WaitGroup) Reason {
	if len(a.ended) >= mostDone || len(a.done) >= mostDone {
		return ReasonBusy
	}
	// The closer takes its copy of the descriptor before the process can close its own.
	c := &closer{proc: a.proc, pid: pid, inode: inode}
	err := c.begin()
	if err == nil {
		e := ending{proc: a.proc, pid: pid, inode: inode, loop: c.loop}
		err = e.run()
	}
	var r *refusal
	switch {
	case errors.As(err, &r):
		c.drop()
		a.countReason(r.why)
		young := r.why == ReasonLoop && time.Since(a.since[d.Cookie]) < patience // a new connection's thread may not have entered its loop yet
		if r.why != ReasonBusy && !young {
			a.last[d.Cookie] = r.why
			slog.Warn("a connection keeps bypassing the proxy", "pid", pid, "to", d.Peer, "reason", string(r.why), "error", r.err)
		}
		return r.why
	case err != nil: // the process has received the end, so there is no way back
		slog.Error("a message may be lost on an adopted connection", "pid", pid, "to", d.Peer, "error", err)
	}
	a.done[d.Cookie] = true
	closing.Go(func() {
		if err := c.await(ctx); err != nil {
			a.countReason(ReasonUnclosed)
			slog.Warn("the process has not closed a connection after the end of stream", "pid", pid, "to", d.Peer, "error", err)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.adopted++
	})
	slog.Info("a connection that bypassed the proxy is being re-established", "pid", pid, "to", d.Peer)
	return ReasonDue
}

// countReason counts an attempt that failed.
func (a *Adopter) countReason(why Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tries[why]++
}

// State returns the counters for the page and psidecar status.
func (a *Adopter) State() *page.Adoption {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &page.Adoption{Adopted: a.adopted, Past: map[string]int{}, Refused: map[string]uint64{}}
	for why, n := range a.now {
		s.Past[string(why)] = n
	}
	for why, n := range a.tries {
		s.Refused[string(why)] = n
	}
	return s
}

// A closer follows a connection whose end was sent to its process until the process has closed
// it. It has a descriptor of the socket of its own, by which it makes sure that the peer sees
// the end.
type closer struct {
	proc   *discover.ProcFS
	pid    int
	inode  uint32
	loop   loop // how the process waits for the socket
	socket int  // this process's descriptor; -1: none
}

// begin finds the connection's event loop and takes a copy of its descriptor (pidfd_getfd,
// which needs CAP_SYS_PTRACE). Errors are refusals.
func (c *closer) begin() (err error) {
	c.socket = -1
	if c.loop, err = findLoop(c.proc, c.pid, c.inode); err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(c.pid, 0)
	if err != nil {
		return refusef(ReasonBusy, "process %d: %w", c.pid, err)
	}
	defer unix.Close(pidfd)
	if c.socket, err = unix.PidfdGetfd(pidfd, c.loop.socket, 0); err != nil {
		return refusef(denied(err), "its file %d: %w", c.loop.socket, err)
	}
	return nil
}

func (c *closer) drop() {
	if c.socket >= 0 {
		unix.Close(c.socket)
	}
}

// await waits until the process has closed its descriptor, and then shuts the socket down in
// both directions. Children of the process may have inherited it; as long as they hold it, the
// peer would not see the end, and would accept no other connection of the same node.
func (c *closer) await(ctx context.Context) error {
	defer c.drop()
	open, name := fmt.Sprintf("socket:[%d]", c.inode), fmt.Sprintf("%d/fd/%d", c.pid, c.loop.socket)
	for end := time.Now().Add(closeFor); ; {
		// The descriptor is closed, or is another file by now.
		if link, err := c.proc.ReadLink(name); err != nil || link != open {
			unix.Shutdown(c.socket, unix.SHUT_RDWR) // fails if the peer has closed it already
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not closed within %v", closeFor)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

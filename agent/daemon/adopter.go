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

// AdopterOptions of an Adopter. All functions are called from one goroutine.
type AdopterOptions struct {
	Proc string // a /proc file system, with the numbers of this process's namespace
	// Directs are the connections on which this host's processes send, past the proxy.
	Directs func() []DirectConnection
	// Owner is whose a connection is: a process, and the folder of its cgroup.
	Owner func(local, peer netip.AddrPort) (pid int, cgroup string, ok bool)
	// Takes reports whether a proxy accepts connections of a cgroup.
	Takes func(cgroup string) bool
	// MeshPort is where other hosts' proxies listen; 0: that is not asked.
	MeshPort uint16
}

// Bounds.
const (
	lookEvery = 100 * time.Millisecond
	mostDone  = 1 << 14         // connections and places that are remembered
	atOnce    = 16              // connections that are ended in one look
	againFor  = time.Minute     // how long a process's connections to one place are left alone after one was ended
	closeFor  = 5 * time.Second // how long a process may take to close one
)

// to is where a process connects.
type to struct {
	pid  int
	peer netip.AddrPort
}

// An Adopter ends connections. Of its fields those above mu are of Run's goroutine.
type Adopter struct {
	opts  AdopterOptions
	proc  *discover.ProcFS
	peers *peers
	since map[uint64]time.Time // when a connection was seen first, by cookie
	done  map[uint64]bool      // connections that were ended, by cookie
	ended map[to]time.Time
	last  map[uint64]Reason // what came of the last try, where that was no passing reason

	mu      sync.Mutex // guards the rest
	adopted uint64
	tries   map[Reason]uint64 // that came to nothing
	now     map[Reason]int    // connections that go past the proxy
}

// NewAdopter returns an Adopter that has ended nothing.
func NewAdopter(o AdopterOptions) *Adopter {
	return &Adopter{
		opts: o, proc: discover.OpenProc(o.Proc), peers: newPeers(o.MeshPort), since: map[uint64]time.Time{}, done: map[uint64]bool{},
		ended: map[to]time.Time{}, last: map[uint64]Reason{}, tries: map[Reason]uint64{}, now: map[Reason]int{},
	}
}

// Run looks for connections until ctx ends.
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

// judgeConnections judges all connections, and ends those that may be.
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
		if why != ReasonDue { // the kernel need not be asked
			count[why]++
			continue
		}
		s, known := a.socket(sockets, filepath.Join(a.opts.Proc, strconv.Itoa(pid), "ns/net"), d)
		if !known {
			continue
		}
		why = a.judge(d, kernel{s.Received, s.Unacked > 0 || s.Unsent > 0 || s.Unread > 0, s.Quiet}, where, cgroup, now)
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

// socket finds what the kernel knows of a connection.
func (a *Adopter) socket(all map[string]map[discover.Ends]discover.Connection, netns string, d DirectConnection) (s discover.Connection, ok bool) {
	in, asked := all[netns]
	if !asked {
		var err error
		if in, err = discover.Connections(netns); err != nil {
			slog.Debug("connections are not adopted", "error", err)
		}
		all[netns] = in
	}
	s, ok = in[discover.Ends{Local: d.Local, Peer: d.Peer}]
	return s, ok && s.Established && s.Cookie == d.Cookie && s.Inode != 0
}

// judge says whether a connection may be ended, as far as the kernel's word goes.
func (a *Adopter) judge(d DirectConnection, k kernel, where to, cgroup string, now time.Time) Reason {
	if why, tried := a.last[d.Cookie]; tried {
		return why
	}
	since, known := a.since[d.Cookie]
	if !known && len(a.since) < mostDone {
		a.since[d.Cookie], since = now, now
	}
	at, again := a.ended[where]
	around := around{proxy: a.opts.Takes(cgroup), again: again && now.Sub(at) < againFor && since.After(at), waiting: now.Sub(since)}
	if around.proxy {
		around.peer = a.peers.listens(d.Peer.Addr(), now)
	}
	return decide(d, k, around)
}

// dropGone drops the state of connections that are gone.
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

// end ends a connection, or says why it stays.
func (a *Adopter) end(ctx context.Context, d DirectConnection, pid int, inode uint32, closing *sync.WaitGroup) Reason {
	if len(a.ended) >= mostDone || len(a.done) >= mostDone {
		return ReasonBusy
	}
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
		young := r.why == ReasonLoop && time.Since(a.since[d.Cookie]) < patience // it may just have been made
		if r.why != ReasonBusy && !young {
			a.last[d.Cookie] = r.why
			slog.Warn("a connection stays past the proxy", "pid", pid, "to", d.Peer, "reason", string(r.why), "error", r.err)
		}
		return r.why
	case err != nil: // after it received the end
		slog.Error("a message may be lost on a connection that was adopted", "pid", pid, "to", d.Peer, "error", err)
	}
	a.done[d.Cookie] = true
	closing.Go(func() {
		if err := c.await(ctx); err != nil {
			a.countReason(ReasonUnclosed)
			slog.Warn("a connection was told the end, and is still there", "pid", pid, "to", d.Peer, "error", err)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.adopted++
	})
	slog.Info("a connection that went past the proxy is made anew", "pid", pid, "to", d.Peer)
	return ReasonDue
}

func (a *Adopter) countReason(why Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tries[why]++
}

// State says what came of it, for psidecar status.
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

// A closer decides about a connection whose process has received the end.
type closer struct {
	proc   *discover.ProcFS
	pid    int
	inode  uint32
	loop   loop
	socket int // -1: none
}

// begin finds the connection, and takes a copy of its descriptor.
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

// awaitState waits until the process has closed the connection, and closes it for good:
// children of the process may have it too, and then its peer would not hear of the
// end, and take no other connection of the same node.
func (c *closer) await(ctx context.Context) error {
	defer c.drop()
	open, name := fmt.Sprintf("socket:[%d]", c.inode), fmt.Sprintf("%d/fd/%d", c.pid, c.loop.socket)
	for end := time.Now().Add(closeFor); ; {
		if link, err := c.proc.ReadLink(name); err != nil || link != open {
			unix.Shutdown(c.socket, unix.SHUT_RDWR) // fails where its peer has ended it
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

package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/page"
)

// AdopterOptions configure an Adopter. All functions are called from Run's goroutine and must
// not block.
type AdopterOptions struct {
	Proc string // a /proc file system that shows the PIDs of this process's namespace
	// Connections returns those on which this host's processes send.
	Connections func() []Connection
	// Owner returns the process of a connection and the folder of its cgroup.
	Owner func(local, peer netip.AddrPort) (pid int, cgroup string, ok bool)
	// Late has connections adopted also where connects are redirected: they were made while no
	// proxy was there.
	Late  bool
	Proxy Spared
	// MeshPort is the port at which other hosts' proxies listen. With 0, a proxy is assumed at
	// every host.
	MeshPort uint16
}

// Spared says which connects go to the proxy; [listeners.Listeners] is one.
type Spared interface {
	// Takes reports whether a proxy now accepts connections of a cgroup.
	Takes(cgroup string) bool
	// Spares reports whether connects of a cgroup go direct, except to where Take has them go to
	// the proxy, and whether they did so at some time. Hold undoes Take: connects fail for a time,
	// which may be 0, and then go direct.
	Spares(cgroup string) (now, once bool)
	Take(cgroup string, to netip.AddrPort) error
	Hold(cgroup string, to netip.AddrPort, within time.Duration) error
	// Unneeded returns connections that gain nothing by the proxy, and forgets them.
	Unneeded() map[handover.Source]bool
}

// Bounds of what an Adopter does and remembers.
const (
	lookEvery = 100 * time.Millisecond // interval of looking at all direct connections
	mostDone  = 1 << 14                // connections, and places, that are remembered
	atOnce    = 16                     // connections that are ended in one look, each of which stops a thread for a moment
	againFor  = time.Minute            // for how long connections of a process to a place are left alone after one was ended
	againMost = 16 * time.Minute       // the same, where they have gained nothing by the proxy again and again
	outFor    = 30 * time.Second       // how long a connection that gains nothing by the proxy is tried to be ended
	holdFor   = 10 * time.Second       // how long one that was ended may take to end at its other end
	closeFor  = 5 * time.Second        // how long a process may take to close a connection that it was told the end of
)

// to identifies where a process connects.
type to struct {
	pid  int
	peer netip.AddrPort
}

// rest says until when connections to a place are left alone.
type rest struct {
	at   time.Time // when one was last ended
	wait time.Duration
}

// An Adopter ends direct connections so that their processes make them again by way of the
// proxy, and connections through the proxy so that they are made again without it. The fields above
// mu belong to Run's goroutine.
type Adopter struct {
	opts  AdopterOptions
	proc  *discover.ProcFS
	peers *peers
	// sockets returns the sockets of a network namespace; tests set another.
	sockets func(netns string) (map[discover.Ends]discover.Connection, error)
	since   map[uint64]time.Time // when a connection was first seen, by cookie; at most mostDone
	done    map[uint64]bool      // connections that were ended and may not be closed yet, by cookie
	ended   map[to]rest
	last    map[uint64]Reason             // connections that cannot be ended as long as they live, by cookie
	waits   map[uint64]*bottleneck        // of direct connections, by cookie
	slow    map[hostPair]time.Time        // when a link was last slow
	sampled time.Time                     // when usages were last added
	out     map[handover.Source]time.Time // when the proxy said last that they gain nothing by it

	mu      sync.Mutex              // guards the fields below
	adopted uint64                  // direct connections that were ended and closed
	left    uint64                  // connections through the proxy that were ended and closed
	tries   map[Reason]uint64       // attempts that failed
	now     map[Reason]int          // direct connections at the last look, by why they stay
	held    map[netip.AddrPort]bool // destinations at which a connection through the proxy is ending: connects there are held, one at a time
}

// NewAdopter returns an Adopter; it does nothing before Run.
func NewAdopter(o AdopterOptions) *Adopter {
	return &Adopter{
		opts: o, proc: discover.OpenProc(o.Proc), peers: newPeers(o.MeshPort), sockets: discover.Connections, since: map[uint64]time.Time{}, done: map[uint64]bool{},
		ended: map[to]rest{}, last: map[uint64]Reason{}, waits: map[uint64]*bottleneck{}, slow: map[hostPair]time.Time{}, out: map[handover.Source]time.Time{}, tries: map[Reason]uint64{}, now: map[Reason]int{}, held: map[netip.AddrPort]bool{},
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

// judgeConnections looks at all connections and ends those that may be ended. Each is judged
// twice: first without the kernel, which sorts most of them out for nothing, then with the state
// of its socket. The sockets of a network namespace are dumped once for all its connections.
func (a *Adopter) judgeConnections(ctx context.Context, now time.Time, closing *sync.WaitGroup) {
	all := a.opts.Connections()
	a.dropGone(all, now)
	for s := range a.opts.Proxy.Unneeded() {
		a.out[s] = now
	}
	sockets := map[string]map[discover.Ends]discover.Connection{} // by the namespace's file
	if now.Sub(a.sampled) >= usageEvery {                         // all at a time, for one dump
		a.sampled = now
	}
	count, budget := map[Reason]int{}, atOnce
	for _, d := range all {
		pid, cgroup, ok := a.opts.Owner(d.Local, d.Via)
		if !ok || a.done[d.Cookie] || d.Peer.Addr().IsLoopback() {
			continue
		}
		where, netns := to{pid, d.Peer}, filepath.Join(a.opts.Proc, strconv.Itoa(pid), "ns/net")
		spared, once := a.opts.Proxy.Spares(cgroup)
		switch {
		case !d.direct() && (!spared || !a.isOut(d, netns)), d.direct() && !once && !a.opts.Late:
			continue
		case d.direct() && spared:
			a.watch(sockets, netns, d, now)
		}
		why := a.judge(d, kernel{received: leastHandshake, quiet: quietFor}, where, cgroup, spared, now)
		if why != ReasonDue { // no need to ask the kernel
			if d.direct() {
				count[why]++
			}
			continue
		}
		s, known := a.socket(sockets, netns, d)
		if !known {
			continue
		}
		why = a.judge(d, kernel{s.Received, s.Unacked > 0 || s.Unsent > 0 || s.Unread > 0, s.Quiet}, where, cgroup, spared, now)
		// Bytes received never become fewer, so this verdict is final.
		if why == ReasonBothWays {
			a.last[d.Cookie] = why
		}
		if why == ReasonDue && (budget == 0 || a.isHeld(d.Peer)) {
			why = ReasonBusy
		}
		if why == ReasonDue {
			budget--
			why = a.end(ctx, d, passage{pid, cgroup, netns, s.Inode, spared}, closing)
			if why == ReasonDue {
				a.rest(where, d.direct(), now)
				continue
			}
		}
		if d.direct() {
			count[why]++
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = count
}

// isOut reports whether the proxy has said lately that a connection gains nothing by it.
func (a *Adopter) isOut(d Connection, netns string) bool {
	if len(a.out) == 0 {
		return false
	}
	var s unix.Stat_t
	if err := unix.Stat(netns, &s); err != nil {
		return false
	}
	_, is := a.out[handover.Source{Netns: s.Ino, Address: d.Local}]
	_, also := a.out[handover.Source{Address: d.Local}] // of a proxy that has taken it over
	return is || also
}

// rest leaves the connections to a place alone for a while, and longer each time that they gain
// nothing by the proxy.
func (a *Adopter) rest(where to, direct bool, now time.Time) {
	r := rest{now, max(againFor, a.ended[where].wait)}
	if !direct {
		r.wait = min(2*r.wait, againMost)
	}
	a.ended[where] = r
}

// socket returns the kernel's state of a connection. ok is false if it is no longer
// established, has no process any more, or if its addresses now belong to another socket. all
// caches the dump of each namespace during one look.
func (a *Adopter) socket(all map[string]map[discover.Ends]discover.Connection, netns string, d Connection) (s discover.Connection, ok bool) {
	in, asked := all[netns]
	if !asked {
		var err error
		if in, err = a.sockets(netns); err != nil {
			slog.Debug("cannot adopt connections", "error", err)
		}
		all[netns] = in
	}
	s, ok = in[discover.Ends{Local: d.Local, Peer: d.Via}]
	return s, ok && s.Established && s.Cookie == d.Cookie && s.Inode != 0
}

// judge collects what decide needs. A final reason from an earlier look stands.
func (a *Adopter) judge(d Connection, k kernel, where to, cgroup string, spared bool, now time.Time) Reason {
	if why, tried := a.last[d.Cookie]; tried {
		return why
	}
	since, known := a.since[d.Cookie]
	if !known && len(a.since) < mostDone {
		a.since[d.Cookie], since = now, now
	}
	around := around{proxy: a.opts.Proxy.Takes(cgroup), waiting: now.Sub(since)}
	if !d.direct() {
		around.proxy, around.peer = true, true
		return decide(d, k, around)
	}
	if spared {
		_, slow := a.slow[hostPair{d.Local.Addr(), d.Peer.Addr()}]
		around.fast = !slow
	}
	// Again: this connection was made after one to the same place was ended, so it was not
	// redirected, or was to be direct. Ending it too would go on for ever.
	last, again := a.ended[where]
	if !spared {
		last.wait = againFor
	}
	around.again = again && now.Sub(last.at) < last.wait && since.After(last.at)
	if around.proxy {
		around.peer = a.peers.listens(d.Peer.Addr(), now)
	}
	return decide(d, k, around)
}

// dropGone drops the state of connections that are gone and of places that may be tried again.
func (a *Adopter) dropGone(all []Connection, now time.Time) {
	there := make(map[uint64]bool, len(all))
	for _, d := range all {
		there[d.Cookie] = true
	}
	for cookie := range a.since {
		if !there[cookie] {
			delete(a.since, cookie)
			delete(a.last, cookie)
			delete(a.waits, cookie)
		}
	}
	for cookie := range a.done {
		if !there[cookie] {
			delete(a.done, cookie)
		}
	}
	for where, r := range a.ended {
		if now.Sub(r.at) > 4*r.wait {
			delete(a.ended, where)
		}
	}
	for pair, at := range a.slow {
		if now.Sub(at) > slowFor {
			delete(a.slow, pair)
		}
	}
	for s, at := range a.out {
		if now.Sub(at) > outFor {
			delete(a.out, s)
		}
	}
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
	s := &page.Adoption{Adopted: a.adopted, Left: a.left, Past: map[string]int{}, Refused: map[string]uint64{}}
	for why, n := range a.now {
		s.Past[string(why)] = n
	}
	for why, n := range a.tries {
		s.Refused[string(why)] = n
	}
	return s
}

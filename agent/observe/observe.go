// Package observe rebuilds a host's PS-lite messages from what a capture
// yields, finds out whose they are, and counts them.
//
// In come the [bpf.Record]s of a live capture, or of a replayed one, to
// [Observer.Handle]; a [Resolver] says which process a connection belongs to.
// Out come [Job]s with their nodes and their sums (package counts). The
// agent calls it. It opens no socket, reads no file and asks no clock, so that
// recordings run through the very code that a live host runs.
//
// Every message is counted where it is sent: a host's agent sees what its
// processes send, so that over all hosts each message counts once. A worker's
// access to a key counts at its request; the bytes of pulled values count at
// the answer.
package observe

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// A Process is what a host knows of a process at one end of a connection.
type Process struct {
	PID       int
	Role      string // DMLC_ROLE; empty for a process that is not PS-lite's
	Scheduler netip.AddrPort
	Servers   int // DMLC_NUM_SERVER, 0 unknown
	Workers   int
	// Listens are the addresses at which the others may reach it: its host's
	// with the ports that it listens on.
	Listens   []netip.AddrPort
	Pod       string // Kubernetes pod UID
	Container string
}

// mayBe reports whether q, which has the same number, may be the same process: it
// listens where that did, perhaps at other addresses of the host by now.
func (p *Process) mayBe(q *Process) bool {
	return p.Role == q.Role && slices.ContainsFunc(p.Listens, q.listens)
}

// listens reports whether the process listens at the address's port.
func (p *Process) listens(a netip.AddrPort) bool {
	return slices.ContainsFunc(p.Listens, func(b netip.AddrPort) bool { return b.Port() == a.Port() })
}

// A Resolver knows the processes of the host.
type Resolver interface {
	// Owner returns the process whose socket is bound to local and connected
	// to peer. It may look around again when it does not know.
	Owner(local, peer netip.AddrPort) (Process, bool)
}

// Options of an observer.
type Options struct {
	Resolver Resolver // nil where nothing is known of processes, as for a recording
	Locality counts.LocalityOptions
	// Wall turns a record's time into nanoseconds since 1970; nil: it is that.
	Wall func(monotonic uint64) int64
	// OneIn returns the rate at which requests are sampled now; nil: all are.
	OneIn func() uint32
	// IngressTimes says that received streams bring metas only, to time the
	// answers to this host's own requests. Nothing else is counted of them.
	IngressTimes bool
	// Route, where not nil, tells where a connection goes that may have been
	// redirected to a proxy.
	Route Route
	// Uses, where not nil, is called with every use of keys: psidecar record sets
	// it.
	Uses func(Use)
	// Slow, where not nil, is called with each request whose answer took
	// Locality.SlowAfter or longer, and its job's scheduler. It must not block, nor
	// call the observer.
	Slow func(scheduler netip.AddrPort, s counts.Slow)
	// LastPush, where not nil, is called when a worker of this host tells its job's
	// scheduler, on a connection that was not redirected to a proxy, that it pushes
	// no more: see lastPush. It must not block.
	LastPush func(scheduler netip.AddrPort, node int32)
}

// A Route returns the destination of the socket with that cookie: peer, or the
// address that the process meant to connect to. It reports false for sockets that
// are not followed: a proxy's own, and redirected ones whose original destination
// is no longer known.
type Route func(cookie uint64, local, peer netip.AddrPort) (to netip.AddrPort, follow bool)

// Limits of what an observer keeps.
const (
	maxJobs    = 32
	maxNodes   = 8192    // of one job
	maxStreams = 1 << 16 // connections, both directions counted
	heldKeys   = 1 << 17 // keys of a message that are held until its end
	heldBytes  = 64 << 20
)

// Misses counts what could not be counted.
type Misses struct {
	BadMetas      uint64 // meta frames of no known dialect, in connections that speak one
	Incomplete    uint64 // messages of which parts were lost
	Unplaced      uint64 // data messages whose worker or server is not known
	UnplacedBytes uint64
	Unattributed  uint64 // bytes of values that cannot be attributed to keys
	Refused       uint64 // connections, nodes and jobs beyond the limits
}

// Observer keeps the jobs of a host. Handle is called from one goroutine at a
// time; the other methods from any.
//
// mu is held while a record is handled: before locks of the resolver (processes), of
// jobs' sums (counts.Locality) and, within those, of their tables (counts.Table).
//
// Invariant: held is the bytes of the keys in all streams' lists.
type Observer struct {
	opts Options

	mu      sync.Mutex // guards the rest, and streams and jobs whole, but for their sums
	streams map[bpf.StreamID]*stream
	sending map[[2]netip.AddrPort]bpf.StreamID // egress streams by from, to
	jobs    map[netip.AddrPort]*Job            // by scheduler
	misses  Misses
	held    int // bytes of keys held by all streams
	spare   []list
	meta    pslite.Meta
	lens    []int32
	now     int64 // of the newest record
}

// New returns an observer that knows no job yet.
func New(opts Options) *Observer {
	if opts.Wall == nil {
		opts.Wall = func(t uint64) int64 { return int64(t) }
	}
	if opts.OneIn == nil {
		opts.OneIn = func() uint32 { return 1 }
	}
	return &Observer{
		opts:    opts,
		streams: map[bpf.StreamID]*stream{},
		sending: map[[2]netip.AddrPort]bpf.StreamID{},
		jobs:    map[netip.AddrPort]*Job{},
	}
}

// Handle takes one record. It does not keep it.
func (o *Observer) Handle(r *bpf.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = max(o.now, o.opts.Wall(r.Time))
	if r.Kind == bpf.KindOpen {
		o.openStream(r)
		return
	}
	s := o.streams[r.Stream]
	if s == nil {
		return // beyond the limits, counted when it opened, or not to be followed
	}
	switch r.Kind {
	case bpf.KindCommand:
		s.command(r.Data)
		if s.mayAsk(o.opts.Wall(r.Time)) { // before its messages, where that is possible
			o.placeByProcess(s)
		}
	case bpf.KindMeta:
		o.metaRecord(s, r)
	case bpf.KindKeys, bpf.KindKeyRun:
		o.keysRecord(s, r)
	case bpf.KindLens:
		s.lens = append(s.lens, r.Data...)
		o.held += len(r.Data)
	case bpf.KindEnd:
		o.endMessage(s, r)
	case bpf.KindUnsynced:
		s.synced, s.skipped = false, true
		o.giveUp(s)
	case bpf.KindSynced:
		s.synced, s.missed = true, r.Length
	case bpf.KindLost:
		s.skipped = true
		o.giveUp(s)
	case bpf.KindForeign, bpf.KindClose:
		o.close(s, r)
	}
}

// Misses returns what could not be counted so far.
func (o *Observer) Misses() Misses {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.misses
}

// Now returns the time of the newest record.
func (o *Observer) Now() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Unix(0, o.now)
}

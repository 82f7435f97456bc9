// Package observe rebuilds a host's PS-lite messages from the records of a capture, finds out
// which nodes exchange them, and counts them.
//
// # Inputs and outputs
//
// [Observer.Handle] takes the [bpf.Record]s of a live capture or a recording; a [Resolver] says
// which process a connection belongs to. The results are [Job]s with their nodes and sums
// (package counts), read by [Observer.Jobs]. The package opens no socket, reads no file and
// asks no clock, so that recordings run through the very code that a live host runs.
//
// Every message is counted where it is sent: a host's agent sees what its processes send, so
// that over all hosts each message counts once. A worker's access to a key counts at its
// request; the bytes of pulled values count at the answer.
//
// # Parts
//
// A record belongs to a stream, one direction of a connection (stream.go). Streams assemble
// messages (message.go, list.go for their keys; parts.go for keys that proxies made) and are placed: the node at each end is found
// from addresses, ZMTP identities and processes (place.go). Control messages say more about
// nodes (learn.go); nodes of the next run of a job take the place of the earlier ones
// (runs.go); ranks are derived from the order of addresses where nothing else says them
// (order.go).
//
// # Concurrency
//
// One goroutine calls Handle. Everything else may be called from any goroutine; [Observer] says
// which locks are taken in which order.
package observe

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A Process describes a process of this host at one end of a connection.
type Process struct {
	PID       int
	Role      string // DMLC_ROLE; empty for a process that is not a PS-lite node
	Scheduler netip.AddrPort
	Servers   int // DMLC_NUM_SERVER; 0: unknown
	Workers   int // DMLC_NUM_WORKER; 0: unknown
	// Listens are the addresses at which other nodes may reach it: each of the host's, with
	// each port that it listens on.
	Listens   []netip.AddrPort
	Pod       string // Kubernetes pod UID
	Container string
}

// mayBe reports whether q, a process with the same PID, may be p. A reused PID is recognized by
// its ports: q must listen on one of p's, whatever the address, since those become known
// gradually.
func (p *Process) mayBe(q *Process) bool {
	return p.Role == q.Role && slices.ContainsFunc(p.Listens, q.listens)
}

// listens reports whether the process listens at the address's port.
func (p *Process) listens(a netip.AddrPort) bool {
	return slices.ContainsFunc(p.Listens, func(b netip.AddrPort) bool { return b.Port() == a.Port() })
}

// A Resolver knows the processes of the host. It is called with the observer's lock held, so it
// must not call the observer.
type Resolver interface {
	// Owner returns the process whose socket is bound to local and connected to peer. It may
	// scan the host again if it does not know, so calls are rationed: see mayAsk.
	Owner(local, peer netip.AddrPort) (Process, bool)
}

// Options of an observer. Callbacks are called with the observer's lock held, except where they
// are not; none may call the observer.
type Options struct {
	Resolver Resolver // nil where nothing is known of processes, as for a recording
	Locality counts.LocalityOptions
	// Wall converts a record's time to nanoseconds since 1970; nil if it is that already.
	Wall func(monotonic uint64) int64
	// OneIn returns the current sampling rate: one request in so many. nil means that every
	// request is sampled.
	OneIn func() uint32
	// IngressTimes says that received streams bring metas only, by which answers to this host's
	// own requests are timed. Nothing else is counted from them.
	IngressTimes bool
	// Route, if not nil, returns the destination of a connection that may have been redirected
	// to a proxy.
	Route Route
	// Uses, if not nil, is called with every use of keys, one by one: psidecar record sets it.
	// It makes dense runs as expensive as sparse keys.
	Uses func(Use)
	// LastPush, if not nil, is called when a worker of this host announces to its scheduler, on
	// a connection that was not redirected to a proxy, that it pushes no more: see lastPush. It
	// must not block.
	LastPush func(scheduler netip.AddrPort, node int32)
	// PartKeys, if not nil, returns which keys are parts of other keys of a job: proxies store a large value
	// in parts, under keys that no worker knows. In answers they count as the keys that workers use. It
	// returns the ranges after the first known ones, and is called for each answer.
	PartKeys func(scheduler netip.AddrPort, known int) []PartRange
}

// A Route returns the destination of the socket with a cookie: peer, or the address that the
// process meant to connect to before it was redirected. follow is false for sockets that are
// ignored: a proxy's own, and redirected ones whose original destination is no longer known.
type Route func(cookie uint64, local, peer netip.AddrPort) (to netip.AddrPort, follow bool)

// Limits of what an observer keeps.
const (
	// Bounds of an observer's memory. What exceeds them is refused and counted in Misses.
	maxJobs    = 32
	maxNodes   = 8192     // of one job
	maxStreams = 1 << 16  // connections, both directions counted
	heldKeys   = 1 << 17  // literal keys of a message that are held until its end
	heldBytes  = 64 << 20 // keys and lens held by all streams
)

// Misses counts what could not be counted. All fields only grow.
type Misses struct {
	BadMetas      uint64 // meta frames of no known dialect, in connections that speak one
	Incomplete    uint64 // messages with parts that were lost
	Unplaced      uint64 // messages whose worker or server is unknown
	UnplacedBytes uint64 // their sizes
	Unattributed  uint64 // bytes of values that cannot be attributed to keys
	Refused       uint64 // connections, nodes and jobs beyond the limits
}

// An Observer keeps the jobs of a host. Handle is called from one goroutine at a time, the
// other methods from any.
//
// Lock order: mu, then the locks of the resolver (processes), of jobs' sums (counts.Locality)
// and, within those, of their tables (counts.Table). mu is held while a record is handled.
//
// Invariants: held is the memory of the keys and lens in all streams; sending has, for each
// pair of addresses, the newest egress stream that was opened between them.
type Observer struct {
	opts Options

	mu      sync.Mutex // guards the fields below, and all streams, jobs and nodes except Job.Sums
	streams map[bpf.StreamID]*stream
	sending map[[2]netip.AddrPort]bpf.StreamID // egress streams by from and to
	jobs    map[netip.AddrPort]*Job            // by scheduler
	misses  Misses
	held    int         // bytes, see heldBytes
	spare   []list      // empty lists with buffers, for the next messages
	meta    pslite.Meta // scratch: the meta being handled
	lens    []int32     // scratch: see readLens
	now     int64       // time of the newest record, in nanoseconds since 1970

	restFrom int64 // see SetRest
}

// New returns an observer without jobs.
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

// Handle takes the next record of the capture. It does not retain r or its data. Records of one
// stream must come in order. It may block in the Resolver.
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
		return // refused when it opened, and counted then, or not followed
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
		o.lensRecord(s, r)
	case bpf.KindEnd:
		o.endMessage(s, r)
	// The kernel lost its place in the stream. Messages pass unread until KindSynced.
	case bpf.KindUnsynced:
		s.synced, s.skipped = false, true
		if r.Offset > s.rested { // no message was lost: all of it counts as rested
			s.message.open = false
		}
		o.giveUp(s)
		o.rested(s, r)
	case bpf.KindSynced:
		s.synced, s.missed = true, r.Length
		o.rested(s, r)
	// Records of this stream did not fit into the ring buffer.
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

// Now returns the time of the newest record, which is the clock of everything that the observer
// counts.
func (o *Observer) Now() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Unix(0, o.now)
}

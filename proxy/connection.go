package proxy

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/relay"
)

// kind is the way of a connection through this proxy; see the package comment.
type kind string

const (
	kindLink     kind = "link"     // from the job over a link
	kindDirect   kind = "direct"   // from the job to its destination
	kindAccepted kind = "accepted" // from a link to the job
)

var kinds = []kind{kindLink, kindDirect, kindAccepted}

// connection is one that is being carried over one link, or directly. One that goes on over
// another link gets a new connection for it. The goroutine that sets it up owns its fields
// until it is in the register; from then on they are constant, except for sums and the pipe's
// counters.
type connection struct {
	id                  uint64
	kind                kind
	client, destination netip.AddrPort
	job, origin         string         // of the listener, at the dialer's end
	scope               jobs.Scope     // of the process on this host
	peer                relay.Instance // as proven (package link); zero for direct ones
	peerName            relay.Instance // as it calls itself
	linkID              uint64
	codec               string // empty: the link has none
	past                string // why a direct one bypassed the mesh; empty: no link was wanted
	started             time.Time
	pipe                relay.Conn
	sums                atomic.Pointer[aggregate.Queue] // nil: its pushes are not summed
	cookies             []uint64                        // of its sockets
	kept                *session                        // the session that it carries; nil: it does not survive its link
	within              bool                            // its ends are on one host; set by the register
	transit             *transit                        // nil: it cannot change links in order
	paid                time.Time                       // when encoding last paid, as far as Unneeded knows
}

// ends identifies a socket by its own address and its peer's. Sockets of different network
// namespaces may have the same ends.
type ends struct{ local, peer netip.AddrPort }

// ends returns the ends of the connection's two sockets.
func (c *connection) ends() [2]ends {
	of := func(c net.Conn) ends { return ends{addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())} }
	return [2]ends{of(c.pipe.Job), of(c.pipe.Far)}
}

// Owns reports whether a socket is one of the proxy's own: it has the cookie (SO_COOKIE) of a
// connection that the proxy carries or has carried not long ago, or these ends, in any
// network namespace. The agent asks, so that it does not count the job's messages twice.
func (p *Proxy) Owns(cookie uint64, local, peer netip.AddrPort) bool {
	p.conns.mu.Lock()
	defer p.conns.mu.Unlock()
	return p.conns.cookies[cookie] || p.conns.ends[ends{local, peer}]
}

// line returns the router's part in the connection, nil where it has none.
func (c *connection) line() jobs.Line {
	for _, s := range []relay.Stage{c.pipe.Outbound, c.pipe.Inbound} {
		if l, ok := s.(jobs.Line); ok {
			return l
		}
	}
	return nil
}

// maxClosed bounds the closed sockets that are remembered: an agent may ask later about what
// they have sent.
const maxClosed = 1 << 14

// readCookies returns the cookies of the connection's sockets.
func (c *connection) readCookies() (cookies []uint64) {
	// Both sockets of the proxy are its own; the agent must count neither.
	for _, conn := range []net.Conn{c.pipe.Job, c.pipe.Far} {
		if cookie, ok := socketCookie(conn); ok {
			cookies = append(cookies, cookie)
		}
	}
	return cookies
}

// flows sums what connections have carried.
type flows struct{ toFar, toJob relay.FlowCounts }

// addConnection adds what a connection has carried so far.
func (f *flows) addConnection(c *connection) {
	addCounts(&f.toFar, c.pipe.ToFar.Counts())
	addCounts(&f.toJob, c.pipe.ToJob.Counts())
}

func addCounts(sum *relay.FlowCounts, c relay.FlowCounts) {
	sum.Messages += c.Messages
	sum.Encoded += c.Encoded
	sum.Unheld += c.Unheld
	sum.In += c.In
	sum.Out += c.Out
	sum.CodecNanos += c.CodecNanos
	sum.Lane += c.Lane
	sum.Spared += c.Spared
}

// register has all open connections, and sums of those that have ended.
//
// A connection's counters are in exactly one of open and ended, so that totals never count
// one twice or drop: mu is held while it changes sides.
type register struct {
	instance relay.Instance // of this proxy
	nextLink atomic.Uint64
	stopping atomic.Bool

	mu   sync.Mutex             // guards the rest
	last uint64                 // id given last
	open map[uint64]*connection // by id; what they carried is not in ended yet
	ends map[ends]bool          // of the sockets of open connections
	// cookies has those of open connections and of the maxClosed sockets that closed last;
	// closed lists the latter, oldest first.
	cookies map[uint64]bool
	closed  []uint64
	total   map[kind]uint64
	ended   map[string]*flows // by codec
	within  flows             // of those with a codec that ended within the host, which are in ended too
	errors  map[reason.Reason]uint64
	past    map[string]uint64 // connections that bypassed the mesh, by reason
	waits   map[bool]uint64   // connections that waited for a mesh port to open, by whether it did
}

func newRegister() *register {
	return &register{
		open: map[uint64]*connection{}, ends: map[ends]bool{}, cookies: map[uint64]bool{}, total: map[kind]uint64{},
		ended: map[string]*flows{}, errors: map[reason.Reason]uint64{}, past: map[string]uint64{}, waits: map[bool]uint64{},
	}
}

// addConnection adds a connection, which gets its id. Cookies are read before, without the
// lock: they take system calls.
func (r *register) addConnection(c *connection) {
	c.cookies = c.readCookies()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	c.id, c.started = r.last, time.Now()
	c.within = c.client.Addr().Unmap() == c.destination.Addr().Unmap() || c.peer == r.instance
	r.open[c.id] = c
	for _, e := range c.ends() {
		r.ends[e] = true
	}
	for _, cookie := range c.cookies {
		r.cookies[cookie] = true
	}
	r.total[c.kind]++
}

// remove removes a closed connection, and adds its counters to the sums. The cookies of the
// last maxClosed sockets stay known, since the agent may still ask about them.
func (r *register) remove(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c.id)
	for _, e := range c.ends() {
		delete(r.ends, e)
	}
	r.closed = append(r.closed, c.cookies...)
	if n := len(r.closed) - maxClosed; n > 0 {
		for _, cookie := range r.closed[:n] {
			delete(r.cookies, cookie)
		}
		r.closed = r.closed[n:]
	}
	sum := r.ended[c.codec]
	if sum == nil {
		sum = &flows{}
		r.ended[c.codec] = sum
	}
	sum.addConnection(c)
	if c.within && c.codec != "" {
		r.within.addConnection(c)
	}
}

// know notes the cookie of a socket that will belong to a connection.
func (r *register) know(job net.Conn) {
	cookie, ok := socketCookie(job)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cookies[cookie] {
		r.cookies[cookie] = true
		r.closed = append(r.closed, cookie)
	}
}

// failed counts a connection that has failed.
func (r *register) failed(why reason.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors[reason.Known(why)]++
}

// wentPast counts a direct connection for which a link was wanted.
func (r *register) wentPast(why string) {
	if why == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.past[why]++
}

// awaited counts a connection that has waited for a mesh port to open.
func (r *register) awaited(opened bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits[opened]++
}

// active returns the number of open connections.
func (r *register) active() int {
	open, _ := r.countConnections()
	return open
}

// countConnections returns the number of open connections, and of all so far.
func (r *register) countConnections() (open int, carried uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open), r.last
}

// openConnections returns the open connections, oldest first.
func (r *register) openConnections() []*connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.open), func(a, b *connection) int { return cmp.Compare(a.id, b.id) })
}

// totals is what metrics show.
type totals struct {
	open, total map[kind]uint64
	flows       map[string]flows // by codec
	within      flows            // of connections with a codec within the host, which are in flows too
	errors      map[reason.Reason]uint64
	past        map[string]uint64
	waits       map[bool]uint64
}

// sums returns the totals, those of open connections included.
func (r *register) sums() totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := totals{open: map[kind]uint64{}, total: maps.Clone(r.total), flows: map[string]flows{}, within: r.within, errors: maps.Clone(r.errors), past: maps.Clone(r.past), waits: maps.Clone(r.waits)}
	for codec, f := range r.ended {
		s.flows[codec] = *f
	}
	for _, c := range r.open {
		s.open[c.kind]++
		f := s.flows[c.codec]
		f.addConnection(c)
		s.flows[c.codec] = f
		if c.within && c.codec != "" {
			s.within.addConnection(c)
		}
	}
	return s
}

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

	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// kind is where a connection comes from and goes to.
type kind string

const (
	kindLink     kind = "link"     // from the job over a link
	kindDirect   kind = "direct"   // from the job to its destination
	kindAccepted kind = "accepted" // from a link to the job
)

var kinds = []kind{kindLink, kindDirect, kindAccepted}

// connection is one that is being carried.
type connection struct {
	id                  uint64
	kind                kind
	client, destination netip.AddrPort
	job, origin         string         // of the listener, at the dialer's end
	scope               jobs.Scope     // of the process on this host
	peer                relay.Instance // zero for direct ones
	linkID              uint64
	codec               string // empty: spliced
	past                string // why a direct one went past the mesh; empty: it was not to go there
	started             time.Time
	pipe                relay.Conn
	sums                atomic.Pointer[aggregate.Queue] // nil: its pushes are not looked at
	cookies             []uint64                        // of its sockets
	kept                *session                        // that can outlive this proxy; nil: none
	transit             *transit                        // that can go on over another link in order; nil: it cannot
}

// ends are a socket's own address and its peer's.
type ends struct{ local, peer netip.AddrPort }

func (c *connection) ends() [2]ends {
	of := func(c net.Conn) ends { return ends{addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())} }
	return [2]ends{of(c.pipe.Job), of(c.pipe.Far)}
}

// Owns reports whether the socket with that cookie (SO_COOKIE) is of a
// connection that the proxy carries, or has carried not long ago, or has these
// ends, in any network namespace.
func (p *Proxy) Owns(cookie uint64, local, peer netip.AddrPort) bool {
	p.conns.mu.Lock()
	defer p.conns.mu.Unlock()
	return p.conns.cookies[cookie] || p.conns.ends[ends{local, peer}]
}

// maxClosed is how many sockets that have closed are known: an agent may read
// later what they sent.
const maxClosed = 1 << 14

func (c *connection) readCookies() (cookies []uint64) {
	for _, conn := range []net.Conn{c.pipe.Job, c.pipe.Far} {
		if cookie, ok := socketCookie(conn); ok {
			cookies = append(cookies, cookie)
		}
	}
	return cookies
}

// flows is what connections have carried.
type flows struct{ toFar, toJob relay.FlowCounts }

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

// register knows all connections and sums up those that ended.
type register struct {
	nextLink atomic.Uint64
	stopping atomic.Bool

	mu   sync.Mutex             // guards the rest
	last uint64                 // id that was given
	open map[uint64]*connection // by id; what they carried is not in ended yet
	ends map[ends]bool          // of the sockets of open connections
	// cookies are those of the sockets of open connections and of those that
	// closed last; closed has the latter, the oldest first, at most maxClosed.
	cookies map[uint64]bool
	closed  []uint64
	total   map[kind]uint64
	ended   map[string]*flows // by codec
	errors  map[reason.Reason]uint64
	past    map[string]uint64 // connections that went past the mesh, by reason
	waits   map[bool]uint64   // connections that waited for a mesh port to open, by whether it did
}

func newRegister() *register {
	return &register{
		open: map[uint64]*connection{}, ends: map[ends]bool{}, cookies: map[uint64]bool{}, total: map[kind]uint64{},
		ended: map[string]*flows{}, errors: map[reason.Reason]uint64{}, past: map[string]uint64{}, waits: map[bool]uint64{},
	}
}

func (r *register) addConnection(c *connection) {
	c.cookies = c.readCookies()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	c.id, c.started = r.last, time.Now()
	r.open[c.id] = c
	for _, e := range c.ends() {
		r.ends[e] = true
	}
	for _, cookie := range c.cookies {
		r.cookies[cookie] = true
	}
	r.total[c.kind]++
}

// remove takes a closed connection out. The cookies of the last maxClosed closed ones
// stay known, since the agent may still ask about them.
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
}

// know notes a socket that is about to be of a connection.
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

func (r *register) failed(why reason.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors[reason.Known(why)]++
}

// wentPast counts a direct connection for which there could have been a link.
func (r *register) wentPast(why string) {
	if why == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.past[why]++
}

// awaited counts a connection that waited for a mesh port to open.
func (r *register) awaited(opened bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits[opened]++
}

// active returns how many connections are open.
func (r *register) active() int {
	open, _ := r.countConnections()
	return open
}

// countConnections returns how many connections are open, and how many there have been.
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

// totals is everything that metrics show.
type totals struct {
	open, total map[kind]uint64
	flows       map[string]flows // by codec
	errors      map[reason.Reason]uint64
	past        map[string]uint64
	waits       map[bool]uint64
}

func (r *register) sums() totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := totals{open: map[kind]uint64{}, total: maps.Clone(r.total), flows: map[string]flows{}, errors: maps.Clone(r.errors), past: maps.Clone(r.past), waits: maps.Clone(r.waits)}
	for codec, f := range r.ended {
		s.flows[codec] = *f
	}
	for _, c := range r.open {
		s.open[c.kind]++
		f := s.flows[c.codec]
		f.addConnection(c)
		s.flows[c.codec] = f
	}
	return s
}

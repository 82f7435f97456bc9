package jobs

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// readAhead is how many bytes are read at a time, to be looked at.
const readAhead = 64 << 10

// requests is a connection that a process of this host made, in the eyes of the
// relay: what it reads is what the process sent, without what the router took,
// and with what the router has to say.
type requests struct {
	net.Conn
	tcp         *net.TCPConn
	jobs        *Jobs
	destination netip.AddrPort
	scope       Scope  // of the process
	origin      string // where it connects from, as codecs call it
	sender      int32  // node id, from READY
	peer        int32  // node id of the destination
	refused     error  // why nothing more passes
	job         *job
	linked      bool     // the far side is a proxy that understands commandRun
	run         plan.Run // that was named over this connection, for
	table       uint64   // the node table of that digest
	stream      stream
	buf         []byte // read and not looked at are buf[r:w]
	r, w        int
	due         []byte // to be handed on, before anything else but
	before      int    // bytes of buf
	pass        int    // bytes at the start of buf that are to be handed on
	skip        int    // bytes behind those, which the router took
	failed      error  // what comes then
	inMessage   atomic.Bool
	far         handshake           // of the process at the far end; nothing is put in before
	routes      atomic.Pointer[job] // job, once it is a worker's to a server

	mu      sync.Mutex // guards the rest; fields above belong to the reader, far to the writer
	queue   [][]byte   // messages to put in between
	queued  int        // bytes
	expires bool       // the relay has set a deadline
	halt    bool       // Read is to end between two messages
	stands  bool       // it did
	over    bool       // nothing more can be put in
	closed  bool
}

// Outbound returns the connection that a process of this host, of that scope,
// has made to a destination, with requests for displaced keys taken out of it.
// Codecs call where the process is the origin.
func (j *Jobs) Outbound(conn *net.TCPConn, destination netip.AddrPort, scope Scope, origin string) net.Conn {
	j.noteDialled(scope, destination)
	c := &requests{Conn: conn, tcp: conn, jobs: j, destination: destination, scope: scope, origin: origin, sender: pslite.Empty, peer: pslite.Empty}
	c.stream.watcher = c
	return c
}

// Linked says, before anything is read, that the far side is a proxy to which
// runs may be named.
func (c *requests) Linked() { c.linked = true }

// NetConn returns the connection to the process.
func (c *requests) NetConn() net.Conn { return c.tcp }

// Write implements net.Conn, for one goroutine.
func (c *requests) Write(p []byte) (int, error) {
	n, err := c.tcp.Write(p)
	if c.far.consume(p[:max(0, n)]) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.queue) > 0 && !c.closed {
			c.tcp.SetReadDeadline(time.Unix(1, 0))
		}
	}
	return n, err
}

// CloseWrite ends what the process receives.
func (c *requests) CloseWrite() error { return c.tcp.CloseWrite() }

// SetReadDeadline implements net.Conn, for deadlines in the past: one of the
// relay's ends one Read.
func (c *requests) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expires = !t.IsZero()
	return c.tcp.SetReadDeadline(t)
}

// InMessage reports whether the process has said a part of a message, of which the
// relay need not know: one that does not pass as it is is held until all has come.
func (c *requests) InMessage() bool { return c.inMessage.Load() }

// enqueue queues a message for the destination.
func (c *requests) enqueue(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.closed {
		return false
	}
	c.queue = append(c.queue, b)
	c.queued += len(b)
	c.tcp.SetReadDeadline(time.Unix(1, 0))
	return true
}

// retire returns the queue, and makes put refuse more.
func (c *requests) retire() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.queue
	c.over, c.queue, c.queued = true, nil, 0
	return left
}

// Close implements net.Conn.
func (c *requests) Close() error {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	c.mu.Unlock()
	if !already {
		c.jobs.left(c)
	}
	return c.tcp.Close()
}

// ready joins at once: the router may have something to say on a connection on
// which the worker itself is silent.
func (c *requests) ready(id int32) error {
	c.sender = id
	if c.refused = c.acceptNode(); c.refused != nil {
		return c.refused
	}
	if role, _, ok := pslite.Rank(id); ok && role == pslite.Worker {
		c.known(c)
	}
	return nil
}

func (c *requests) of() Scope { return c.scope }

func (c *requests) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.over && !c.closed
}

func (c *requests) wantsKeys(m *pslite.Meta) bool {
	return m.Data() && m.Request && c.known(nil) && c.routed()
}

// named implements watcher: what a process says of runs is worth nothing.
func (c *requests) named(plan.Run) {}

// inspect decides about a message from the process before any of it goes on; passes
// says whether it goes on unchanged.
func (c *requests) inspect(m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	if c.refused != nil {
		return false, c.refused
	}
	if m.Meta.Control.Cmd == pslite.AddNode && c.sender == pslite.SchedulerID {
		if err := c.acceptScheduler(&m.Meta); err != nil {
			return false, err
		}
		c.nameRun(&m.Meta)
	}
	if err := c.misleads(&m.Meta); err != nil {
		return false, err
	}
	if !c.known(nil) {
		return true, c.unknown(m)
	}
	switch cmd := m.Meta.Control.Cmd; {
	case cmd == pslite.AddNode && c.sender == pslite.Empty && c.peer == pslite.SchedulerID:
		c.jobs.restarted(c.job)
		c.job = nil
		return true, nil
	case !c.routed():
		return true, nil
	case cmd == pslite.Ack:
		return c.job.workerAck(c, m.Meta.Control.MsgSig)
	case m.Meta.Data() && m.Meta.Request && m.Keys().Len() > 0:
		return c.job.request(c, m, d)
	}
	return true, nil
}

func (c *requests) takeMessage(m *pslite.Message, d pslite.Dialect) error {
	if m.Meta.Control.Cmd != pslite.NoCommand {
		return nil // an ACK that the router has taken in
	}
	return c.job.takeRequest(c, m, d)
}

// known finds out whose connection it is; w, if not nil, joins when that can be
// found out.
func (c *requests) known(w waiter) bool {
	if c.job != nil && c.job.ended.Load() {
		c.job = nil // another run has begun at these addresses
	}
	if c.job == nil {
		if c.job, c.peer = c.jobs.findJob(c.destination, c.scope, w); c.job != nil {
			c.job.adopt(c)
			c.join(c.job, c.peer)
		}
	}
	return c.job != nil
}

// unknown says why a message of a job that is not known cannot pass.
func (c *requests) unknown(m *pslite.Message) error {
	if role, _, ok := pslite.Rank(c.sender); !ok || role != pslite.Worker || !m.Meta.Data() || !m.Meta.Request {
		return nil
	}
	return c.jobs.errLost()
}

// Whole implements [relay.Routes].
func (c *requests) Whole(part int32) (timestamp int32, ok bool) {
	x := c.routes.Load()
	if x == nil {
		return 0, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.router.Whole(c.sender, part)
}

// Settled implements [relay.Routes].
func (c *requests) Settled() bool {
	x := c.routes.Load()
	return x == nil || x.settledKeys()
}

// join implements waiter. Only a worker's connection to a server is the router's.
func (c *requests) join(x *job, peer int32) {
	from, _, okFrom := pslite.Rank(c.sender)
	to, _, okTo := pslite.Rank(peer)
	if okFrom && okTo && from == pslite.Worker && to == pslite.Server {
		x.connects(c)
		c.routes.Store(x)
		join(x, x.up, x.pendingUp, pair{c.sender, rankOf(peer)}, c)
	}
}

// routed reports whether it is a worker's to a server.
func (c *requests) routed() bool {
	from, _, okFrom := pslite.Rank(c.sender)
	to, _, okTo := pslite.Rank(c.peer)
	return c.job != nil && okFrom && okTo && from == pslite.Worker && to == pslite.Server
}

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

// readAhead is the size of the buffer in which messages are looked at.
const readAhead = 64 << 10

// requests is a connection that a process of this host made, as the relay sees it: what the relay
// reads is what the process sent, without the messages that the router takes and with those that it
// makes.
//
// The buffer has, from r on: pass bytes that were looked at and may be handed on, then skip bytes
// of a message that the router took, then bytes that were not looked at. due is a message of the
// router, or a run's name, that is handed on after the first before bytes.
//
// The fields above mu belong to the reader, that is the relay's goroutine, except for far, which
// belongs to the writer, and atomic ones. A message is queued by whichever goroutine the router
// runs in; it then wakes the reader by a read deadline in the past.
type requests struct {
	net.Conn
	tcp         *net.TCPConn
	jobs        *Jobs
	destination netip.AddrPort
	scope       Scope  // of the process
	origin      string // where it connects from, as codecs know it
	sender      int32  // node id, from READY
	peer        int32  // node id of the destination
	refused     error  // why nothing passes any more
	job         *job
	linked      bool     // the far side is a proxy that understands commandRun
	run         plan.Run // sent over this connection, for the
	table       uint64   // node table with that digest
	stream      stream
	buf         []byte // read and not looked at are buf[r:w]
	r, w        int
	due         []byte              // to be handed on, after
	before      int                 // that many bytes of buf
	pass        int                 // bytes from buf[r] on to be handed on
	skip        int                 // bytes after those, which the router took
	failed      error               // the error that follows what is to be handed on
	later       bool                // the next message has to wait: see wait
	ended       bool                // wait has found that the process sends nothing more
	inMessage   atomic.Bool         // see InMessage
	told        atomic.Bool         // the process was sent the end of its stream
	hungUp      atomic.Bool         // the process has ended the connection, and was not told to
	far         handshake           // handshake of the far process; before its end nothing is put in
	routes      atomic.Pointer[job] // its job, once this is known to be a worker's connection to a server

	mu      sync.Mutex // guards the rest; fields above belong to the reader, far to the writer
	queue   [][]byte   // messages to put in between, each whole
	queued  int        // their bytes
	expires bool       // the relay has set a deadline
	halt    bool       // Read has to end between two messages
	stands  bool       // Read has ended so
	over    bool       // nothing more can be put in
	holdsUp bool       // the queue was full: the job waits for room
	closed  bool
}

// Outbound wraps the connection that a process of this host, of that scope, has made to a
// destination. Requests for displaced keys are taken out of it, and their parts put in where they
// belong. Codecs know the process by origin.
func (j *Jobs) Outbound(conn *net.TCPConn, destination netip.AddrPort, scope Scope, origin string) net.Conn {
	j.noteDialled(scope, destination)
	c := &requests{Conn: conn, tcp: conn, jobs: j, destination: destination, scope: scope, origin: origin, sender: pslite.Empty, peer: pslite.Empty}
	c.stream.watcher = c
	return c
}

// Linked notes that the far side is a proxy that runs may be named to. It must be called before the
// first Read.
func (c *requests) Linked() { c.linked = true }

// NetConn returns the connection to the process.
func (c *requests) NetConn() net.Conn { return c.tcp }

// Write implements net.Conn, for one goroutine. What comes for the process passes unseen, except
// for the far process's handshake: after it the queue may be read.
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

// CloseWrite ends the stream that the process receives. A process then closes the connection, too.
func (c *requests) CloseWrite() error {
	c.told.Store(true)
	return c.tcp.CloseWrite()
}

// SetReadDeadline implements net.Conn, for deadlines in the past only, by which the relay is woken.
// It is remembered, since deadlines also wake Read for the queue: see read.
func (c *requests) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expires = !t.IsZero()
	return c.tcp.SetReadDeadline(t)
}

// InMessage reports whether the process has sent a part of a message. The relay need not know of
// that part: a message that does not pass is held back until all of it has come.
func (c *requests) InMessage() bool { return c.inMessage.Load() }

// enqueue queues a message for the destination and wakes the reader. It reports false where the
// connection takes none any more.
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

// retire returns the queue, and has enqueue refuse more.
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

// ready implements watcher. A worker's connection joins its job now, before its first message: the
// router may have messages for the server although the worker is silent.
func (c *requests) ready(id int32) error {
	c.sender = id
	// Before the READY passes: the far process would replace the connection of the real node by
	// this one.
	if c.refused = c.acceptNode(); c.refused != nil {
		return c.refused
	}
	if role, _, ok := pslite.Rank(id); ok && role == pslite.Worker {
		c.known(c)
	}
	return nil
}

// of implements waiter.
func (c *requests) of() Scope { return c.scope }

// open implements waiter and line: messages can be put in.
func (c *requests) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.over && !c.closed
}

// wantsKeys implements watcher: the router needs the keys of requests.
func (c *requests) wantsKeys(m *pslite.Meta) bool {
	return m.Data() && m.Request && c.known(nil) && c.routed()
}

// named implements watcher. Only proxies name runs; a process that does is ignored.
func (c *requests) named(plan.Run) {}

// inspect implements watcher: it decides about a message of the process before any of it goes on;
// passes means that it goes on unchanged.
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
		// A process that registers has no id yet. Its connection belongs to whichever run the
		// scheduler's next table begins.
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

// takeMessage implements watcher, for messages that inspect did not pass.
func (c *requests) takeMessage(m *pslite.Message, d pslite.Dialect) error {
	if m.Meta.Control.Cmd != pslite.NoCommand {
		return nil // an ACK that the router has taken in
	}
	return c.job.takeRequest(c, m, d)
}

// known reports whether the job of this connection is known, and looks for it. If not, and w is not
// nil, w joins once it is.
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

// unknown returns why a message of an unknown job cannot pass, or nil. Only requests of workers are
// refused, and only while a job is lost whose keys may be displaced.
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
		// What is held back of the worker's pushes is redirected before its first request can take
		// it along.
		x.connects(c)
		c.routes.Store(x)
		p := pair{c.sender, rankOf(peer)}
		x.beginFlight(c, p)
		join(x, x.up, x.pendingUp, p, c)
	}
}

// routed reports whether this is a worker's connection to a server, of a known job.
func (c *requests) routed() bool {
	from, _, okFrom := pslite.Rank(c.sender)
	to, _, okTo := pslite.Rank(c.peer)
	return c.job != nil && okFrom && okTo && from == pslite.Worker && to == pslite.Server
}

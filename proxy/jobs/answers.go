package jobs

import (
	"net"
	"net/netip"
	"sync"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// answers is a connection to a process of this host, as the relay sees it: what the relay writes
// goes to the process, without the messages that the router takes and with those that it makes.
//
// Whoever holds writing owns stream, rest, torn and what is learned of sender and job. A queued
// message is written between two others, never inside one, by the relay's goroutine after its
// message or by a goroutine of its own (wake) while the relay has nothing to write. Once over is
// set nothing is queued any more: later messages wait in the job's pendingDown for the next
// connection.
type answers struct {
	net.Conn
	tcp         *net.TCPConn
	jobs        *Jobs
	destination netip.AddrPort
	scope       Scope // of the process
	from        Peer  // the proxy at the other end; nil: it is not verified
	sender      int32 // node id, from READY
	peer        int32 // node id of the destination
	job         *job
	run         plan.Run // named for the node table that comes next

	writing sync.Mutex // held during writes to the process; taken before mu
	stream  stream
	process handshake // handshake of the process; before its end nothing is put in
	rest    []byte    // bytes received that are too few to be judged
	torn    error     // error of a write that ended inside a message: nothing can follow

	mu      sync.Mutex // guards the rest
	queue   [][]byte   // messages to put in between, each whole
	backlog backlog    // of queue, and of what is being written of it
	holdsUp bool       // backlog was full: the job waits for room
	retired bool       // the job has taken the queue
	over    bool       // nothing more can be put in
	closed  bool
	vetted  *job           // job for which the sender was verified
	refused error          // why it was not accepted
	waking  bool           // a goroutine is about to write the queue
	writers sync.WaitGroup // those goroutines
}

// Inbound wraps the connection to a process of this host, of that scope, whose other end came over
// a link from the proxy from. Answers to parts of requests are merged in it, and answers to the
// router's own requests removed. The caller closes it like any other connection.
func (j *Jobs) Inbound(conn *net.TCPConn, destination netip.AddrPort, scope Scope, from Peer) net.Conn {
	c := &answers{Conn: conn, tcp: conn, jobs: j, destination: destination, scope: scope, from: from, sender: pslite.Empty, peer: pslite.Empty}
	c.stream.watcher = c
	return c
}

// NetConn returns the connection to the process.
func (c *answers) NetConn() net.Conn { return c.tcp }

// CloseWrite ends the stream that the process receives, after the queue. Where another goroutine is
// writing, it is left to that to write the queue, or to put it back for the next connection.
func (c *answers) CloseWrite() error {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	// Lock instead of TryLock could block for as long as the process does not read, and with it the
	// end of the link.
	if c.writing.TryLock() {
		defer c.writing.Unlock()
		return c.endWriting()
	}
	// The end must not come in the middle of the message that is being written.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.writers.Go(func() {
		c.writing.Lock()
		defer c.writing.Unlock()
		c.endWriting() // an error comes back to the next Read
	})
	return nil
}

// endWriting writes the queue and ends the stream; the caller holds writing.
func (c *answers) endWriting() error {
	if err := c.writeQueued(); err != nil {
		return err
	}
	return c.tcp.CloseWrite()
}

// Read implements net.Conn, for one goroutine. What the process sends passes unseen, except for its
// handshake.
func (c *answers) Read(p []byte) (int, error) {
	n, err := c.tcp.Read(p)
	// The process has just said READY: what was queued for it before can go now.
	if c.process.consume(p[:max(0, n)]) {
		c.mu.Lock()
		c.wakeWriter()
		c.mu.Unlock()
	}
	return n, err
}

// Write implements net.Conn, for one goroutine. It follows the stream, writes what passes, and
// holds back an incomplete beginning that cannot be judged yet; p counts as written all the same.
// An error of the stream ends the connection.
//
// All bytes that may pass are written in one call, unless a queued message has to go between two of
// them.
func (c *answers) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	b := p
	if len(c.rest) > 0 {
		c.rest = append(c.rest, p...)
		b = c.rest
	}
	pass := 0 // the first bytes of b, looked at and to be written
	for {
		n, passes, _, err := c.stream.next(b[pass:])
		if err != nil {
			return 0, err
		}
		// Bytes that pass are collected, and written together. Only at the end of a message, and
		// when something is queued, are they written now, so that the queued message comes between.
		if n > 0 && passes {
			pass += n
			if c.stream.between() && c.hasQueued() {
				if err := c.flush(b[:pass]); err != nil {
					return 0, err
				}
				b, pass = b[pass:], 0
			}
			continue
		}
		if err := c.flush(b[:pass]); err != nil {
			return 0, err
		}
		b, pass = b[pass+n:], 0
		if n == 0 {
			break
		}
	}
	// A large message that the router took has made rest grow.
	if len(b) == 0 && cap(c.rest) > 1<<20 {
		c.rest = nil
	}
	c.rest = append(c.rest[:0], b...)
	return len(p), nil
}

// flush writes bytes that pass, then the queue if they end a message.
func (c *answers) flush(b []byte) error {
	if len(b) > 0 {
		if _, err := c.write(b); err != nil {
			return err
		}
	}
	return c.writeQueued()
}

// write writes to the process; the caller holds writing. After a failure inside a message it
// refuses to write more: the process would take it for the rest of that message.
func (c *answers) write(b []byte) (int, error) {
	if c.torn != nil {
		return 0, c.torn
	}
	n, err := c.tcp.Write(b)
	if err != nil && n > 0 {
		c.torn = err
	}
	return n, err
}

// Close implements net.Conn. It closes the socket first, so that writers end.
func (c *answers) Close() error {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	c.mu.Unlock()
	err := c.tcp.Close()
	if !already {
		c.writers.Wait()
		c.jobs.left(c)
	}
	return err
}

// ready implements watcher. A server's connection joins its job now, before its first message: the
// router may have messages for it although the server is silent.
func (c *answers) ready(id int32) error {
	c.sender = id
	if role, _, ok := pslite.Rank(id); ok && role == pslite.Server {
		c.known(c)
	}
	return c.refusal()
}

// of implements waiter.
func (c *answers) of() Scope { return c.scope }

// open implements waiter and line.
func (c *answers) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.over && !c.closed
}

// named implements watcher.
func (c *answers) named(run plan.Run) { c.run = run }

// wantsKeys implements watcher. An answer is routed by its meta alone.
func (c *answers) wantsKeys(*pslite.Meta) bool { return false }

// known reports whether the job of this connection is known, and looks for it. If not, and w is not
// nil, w joins once it is.
func (c *answers) known(w waiter) bool {
	// ended is read without x.mu, since this runs for each message.
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

// join implements waiter. Only a server's connection to a worker is the router's, and only one
// whose sender is believed: on it the router takes answers.
func (c *answers) join(x *job, peer int32) {
	from, _, okFrom := pslite.Rank(c.sender)
	to, _, okTo := pslite.Rank(peer)
	if okFrom && okTo && from == pslite.Server && to == pslite.Worker && c.believed(x) {
		join(x, x.down, x.pendingDown, pair{peer, rankOf(c.sender)}, c)
	}
}

// routed reports whether this is a server's connection to a worker, of a known job.
func (c *answers) routed() bool {
	from, _, okFrom := pslite.Rank(c.sender)
	to, _, okTo := pslite.Rank(c.peer)
	return c.job != nil && okFrom && okTo && from == pslite.Server && to == pslite.Worker
}

// inspect decides about a message from the server before any of it goes to the worker;
// passes says whether it goes on unchanged. Answers and acknowledgements of requests
// that the router made are its own: the worker has never sent such timestamps, so they
// must not reach it.
func (c *answers) inspect(m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	// A node table is learned before the process gets it: as soon as it has it, it connects to the
	// other nodes, and this proxy must know whose connections these are.
	if m.Meta.Control.Cmd == pslite.AddNode && c.sender == pslite.SchedulerID {
		learn, err := c.acceptTable(&m.Meta)
		if err != nil {
			return false, err
		}
		if learn {
			c.jobs.takeNodeTable(&m.Meta, c.destination, c.run, c.scope)
		}
	}
	if !c.known(nil) {
		// A proxy here asked for it before what it knew of the job was damaged. The
		// worker never did: its tracker has no such timestamp.
		return m.Meta.Request || !isOwn(&m.Meta), nil
	}
	// The server will answer a proxy, and until it has, that answer must not bypass the proxies.
	if m.Meta.Request && isOwn(&m.Meta) {
		c.job.noteOwn()
	}
	if !c.routed() {
		return true, nil
	}
	if err := c.refusal(); err != nil {
		return false, err
	}
	switch {
	case m.Meta.Control.Cmd == pslite.Ack:
		return c.job.serverAck(c, m.Meta.Control.MsgSig)
	case m.Meta.Data() && !m.Meta.Request:
		return c.job.answer(c, m, d)
	}
	return true, nil
}

// takeMessage implements watcher, for messages that inspect did not pass.
func (c *answers) takeMessage(m *pslite.Message, d pslite.Dialect) error {
	if m.Meta.Control.Cmd != pslite.NoCommand {
		return nil // an ACK that the router has taken in
	}
	if c.job == nil {
		c.jobs.strayAnswers.Add(1)
		return nil
	}
	return c.job.takeAnswer(c, m, d)
}

package jobs

import (
	"net/netip"
	"sync"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// answers is the [Line] of a connection to a process of this host, whose other end came over a link.
// It merges answers to parts of requests, and takes out answers to the router's own requests.
//
// The fields above mu belong to the direction's goroutine, except for from. Messages are queued by
// whichever goroutine the router runs in. Once over is set nothing is queued any more: later
// messages wait in the job's pendingDown for the next connection.
type answers struct {
	jobs        *Jobs
	destination netip.AddrPort
	scope       Scope // of the process
	from        Peer  // the proxy at the other end; nil: it is not verified
	sender      int32 // node id, from READY
	peer        int32 // node id of the destination
	job         *job
	run         plan.Run // named for the node table that comes next

	mu        sync.Mutex // guards the rest
	queue     [][]byte   // messages to put in between, each whole
	backlog   backlog    // of queue, and of what is being written of it
	wake      func()     // see requests
	receptive bool       // the process has sent its READY; before, nothing is put in
	holdsUp   bool       // backlog was full: the job waits for room
	retired   bool       // the job has taken the queue
	over      bool       // nothing more can be put in
	closed    bool
	vetted    *job  // job for which the sender was verified
	refused   error // why it was not accepted
}

// Inbound returns the line of a connection to the process of this host, of that scope, that listens
// at the destination. Its other end came over a link from the proxy from.
func (j *Jobs) Inbound(destination netip.AddrPort, scope Scope, from Peer) Line {
	return j.inbound(destination, scope, from)
}

func (j *Jobs) inbound(destination netip.AddrPort, scope Scope, from Peer) *answers {
	return &answers{jobs: j, destination: destination, scope: scope, from: from, sender: pslite.Empty, peer: pslite.Empty}
}

// Linked implements Line. Runs are named to this proxy, not by it.
func (c *answers) Linked() {}

// Close implements [relay.Stage].
func (c *answers) Close() {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	c.mu.Unlock()
	if !already {
		c.jobs.left(c)
	}
}

// Command implements [relay.Judge].
func (c *answers) Command(name string, data []byte) (passes bool, err error) {
	if id, ok := readyOf(name, data); ok {
		return true, c.ready(id)
	}
	if name != commandRun {
		return true, nil
	}
	// The proxies' own: no process ever sees it.
	if run := plan.Run(data); run.Valid() {
		c.run = run
	}
	return false, nil
}

// ready handles the READY of the process at the other end. A server's connection joins its job now,
// before its first message: the router may have messages for it although the server is silent.
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

// WantsKeys implements [relay.Judge]. An answer is routed by its meta alone.
func (c *answers) WantsKeys(*pslite.Meta) bool { return false }

// Silent implements [relay.Judge]. No answer waits.
func (c *answers) Silent() {}

// Inspect implements [relay.Judge].
func (c *answers) Inspect(m *pslite.Message, d pslite.Dialect) (relay.Taken, error) {
	passes, err := c.inspect(m, d)
	if passes || err != nil {
		return relay.Passes, err
	}
	return relay.Took, nil
}

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

// Take implements [relay.Judge].
func (c *answers) Take(m *pslite.Message, d pslite.Dialect) error {
	if m.Meta.Control.Cmd != pslite.NoCommand {
		return nil // an ACK that the router has taken in
	}
	if c.job == nil {
		c.jobs.strayAnswers.Add(1)
		return nil
	}
	return c.job.takeAnswer(c, m, d)
}

package jobs

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Line is the stage of a connection of a process of this host: the router's part in it.
type Line interface {
	relay.Stage
	// Linked notes that the far side is a proxy that runs may be named to. It must be called before
	// the connection is carried.
	Linked()
	// GoOn lets the connection go on over another link, which comes from another proxy.
	GoOn(from Peer)
	// Leave writes what the router has for the process, for a connection that another proxy goes on
	// with and nobody carries meanwhile. Afterwards the Line can only be closed. With an error the
	// process may have got a part of a message, and the connection must be closed.
	Leave(process net.Conn) error
}

// requests is the [Line] of a connection that a process of this host has made. It takes requests
// for displaced keys out of what the process sends, and puts their parts in where they belong.
//
// The fields above mu belong to the direction's goroutine, except for atomic ones. A message is
// queued by whichever goroutine the router runs in; it then wakes the direction.
type requests struct {
	jobs        *Jobs
	destination netip.AddrPort
	scope       Scope  // of the process
	origin      string // where it connects from, as codecs know it
	sender      int32  // node id, from READY
	peer        int32  // node id of the destination
	refused     error  // why nothing passes any more
	job         *job
	linked      bool                // the far side is a proxy that understands commandRun
	run         plan.Run            // sent over this connection, for the
	table       uint64              // node table with that digest
	name        []byte              // command that goes before the message just looked at
	ended       bool                // the process sends nothing more
	hungUp      atomic.Bool         // the process has ended the connection, and was not told to
	routes      atomic.Pointer[job] // its job, once this is known to be a worker's connection to a server

	mu        sync.Mutex // guards the rest
	queue     [][]byte   // messages to put in between, each whole
	queued    int        // their bytes
	wake      func()     // has the direction look at the queue; nil: nobody carries the connection
	receptive bool       // the far process has sent its READY; before, nothing is put in
	over      bool       // nothing more can be put in
	holdsUp   bool       // the queue was full: the job waits for room
	closed    bool
}

// Outbound returns the line of a connection that a process of this host, of that scope, has made to
// a destination. Codecs know the process by origin.
func (j *Jobs) Outbound(destination netip.AddrPort, scope Scope, origin string) Line {
	return j.outbound(destination, scope, origin)
}

func (j *Jobs) outbound(destination netip.AddrPort, scope Scope, origin string) *requests {
	j.noteDialled(scope, destination)
	return &requests{jobs: j, destination: destination, scope: scope, origin: origin, sender: pslite.Empty, peer: pslite.Empty}
}

// Linked implements Line.
func (c *requests) Linked() { c.linked = true }

// Attach implements [relay.Speaker].
func (c *requests) Attach(wake func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = wake
}

// Receptive implements [relay.Speaker]. libzmq ends a connection on which a message arrives before
// it has sent READY itself, and the message is lost.
func (c *requests) Receptive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receptive = true
	if len(c.queue) > 0 {
		c.wakeUp()
	}
}

// wakeUp has the direction look at the queue, and at a message that waits; the caller holds c.mu.
func (c *requests) wakeUp() {
	if c.wake != nil {
		c.wake()
	}
}

// enqueue queues a message for the destination, and reports false where the connection takes none
// any more.
func (c *requests) enqueue(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.closed {
		return false
	}
	c.queue = append(c.queue, b)
	c.queued += len(b)
	c.wakeUp()
	return true
}

// HasDue implements [relay.Speaker].
func (c *requests) HasDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.name) > 0 || c.receptive && len(c.queue) > 0
}

// dueBytes bounds what Due returns at once, beyond one message. What is not due yet counts as
// queued.
const dueBytes = 64 << 10

// Due implements [relay.Speaker]. A run's name is for the far proxy, not for the process.
func (c *requests) Due() (due [][]byte) {
	c.mu.Lock()
	if len(c.name) > 0 {
		due, c.name = append(due, c.name), nil
	}
	for n := 0; c.receptive && len(c.queue) > 0 && n < dueBytes; {
		m := c.queue[0]
		c.queue[0] = nil // the array may stay for long
		c.queue = c.queue[1:]
		c.queued -= len(m)
		n += len(m)
		due = append(due, m)
	}
	room := c.hasRoom()
	c.mu.Unlock()
	if x := c.routes.Load(); room && x != nil {
		x.letGo()
	}
	return due
}

// Sent implements [relay.Speaker]. What did not go before the link ended goes first over the next
// one. Of a link that breaks it is unknown what has arrived.
func (c *requests) Sent(batch [][]byte, _ int) {
	c.mu.Lock()
	over := c.over
	if !over {
		c.queue = slices.Concat(batch, c.queue)
		for _, m := range batch {
			c.queued += len(m)
		}
	}
	c.mu.Unlock()
	// Whoever took the queue has not seen these, and does not come again.
	switch x := c.routes.Load(); {
	case over && x != nil:
		sayAgain(x, x.up, x.pendingUp, pair{c.sender, rankOf(c.peer)}, batch)
	case over:
		c.jobs.messages.count(lostOver, uint64(len(batch)))
	}
}

// End implements [relay.Speaker].
func (c *requests) End(told, between bool) bool {
	// A reset says nothing: a connection that this proxy resets looks the same.
	if !told {
		c.hungUp.Store(true)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > 0 && between && c.receptive {
		return false
	}
	c.over = true
	return true
}

// Silent implements [relay.Judge].
func (c *requests) Silent() { c.ended = true }

// retire returns the queue, and has enqueue refuse more.
func (c *requests) retire() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.queue
	c.over, c.queue, c.queued = true, nil, 0
	return left
}

// Close implements [relay.Stage].
func (c *requests) Close() {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	c.mu.Unlock()
	if !already {
		c.jobs.left(c)
	}
}

// Command implements [relay.Judge]. Only proxies name runs; no name is taken from a process.
func (c *requests) Command(name string, data []byte) (passes bool, err error) {
	if id, ok := readyOf(name, data); ok {
		return true, c.ready(id)
	}
	return name != commandRun, nil
}

// readyOf returns the node id in a command, Empty where it has none; ok is false unless the command
// is a READY.
func readyOf(name string, data []byte) (id int32, ok bool) {
	if name != zmtp.CommandReady {
		return pslite.Empty, false
	}
	r, err := zmtp.ParseReady(data)
	if err != nil {
		return pslite.Empty, false
	}
	if id, ok = pslite.ParseIdentity(r.Identity); !ok {
		id = pslite.Empty
	}
	return id, true
}

// ready handles the process's READY, with its node id. With an error the connection ends. A worker's
// connection joins its job now, before its first message: the router may have messages for the
// server although the worker is silent.
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

// WantsKeys implements [relay.Judge]: the router needs the keys of requests.
func (c *requests) WantsKeys(m *pslite.Meta) bool {
	return m.Data() && m.Request && c.known(nil) && c.routed()
}

// Inspect implements [relay.Judge].
func (c *requests) Inspect(m *pslite.Message, d pslite.Dialect) (relay.Taken, error) {
	passes, err := c.inspect(m, d)
	switch {
	case errors.Is(err, errLater):
		return relay.Waits, nil
	case passes || err != nil:
		return relay.Passes, err
	}
	return relay.Took, nil
}

// inspect decides about a message of the process before any of it goes on; passes means that it
// goes on unchanged. With errLater it has to be shown again.
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

// Take implements [relay.Judge].
func (c *requests) Take(m *pslite.Message, d pslite.Dialect) error {
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

// Assigns implements [relay.Routes].
func (c *requests) Assigns() bool {
	x := c.routes.Load()
	return x != nil && x.adding.assigns.Load()
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

package jobs

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// pair is a worker and a server: worker is a node id, server a rank, as package route has them.
type pair struct{ worker, server int32 }

// maxPending bounds the messages that wait for one connection. It is far above what is made before
// connections are held up (see crowd.go).
const maxPending = 1 << 16

// enqueueOut hands a message of the router to the connection that it belongs to, or keeps it until
// there is one; the caller holds x.mu. An output without frames means that the job cannot go on.
func (x *job) enqueueOut(o *route.Out) {
	if o.Frames == nil {
		x.failed = fmt.Errorf("job %s: a request to server %d was held while one of its keys moved, and cannot be split among the current owners of its keys", x.name, o.Server)
		x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", x.failed)
		return
	}
	// The frames are copied into one buffer here, so the router's memory is free as soon as carry
	// returns.
	p, message := pair{o.Worker, o.Server}, appendMessage(nil, o.Frames)
	switch {
	case !o.ToWorker:
		say(x, x.up, x.pendingUp, p, message)
		if !x.fullUp[p] && full(x.up, x.pendingUp, p) {
			x.fullUp[p] = true
		}
	// Servers repeat their answers, and the worker what was not acknowledged, for as long as it
	// reads nothing.
	case x.router.Resend() && full(x.down, x.pendingDown, p):
		x.lose(lostFull, 1)
	default:
		say(x, x.down, x.pendingDown, p, message)
		if !x.fullDown[p] && full(x.down, x.pendingDown, p) {
			x.fullDown[p] = true
		}
	}
}

// line is a connection into which the router puts messages: a worker's to a server (requests), or
// the reverse (answers). full reports whether its queue, with so many messages and bytes more, has
// no room; if so, the job is told when it has again. None of the methods blocks.
type line interface {
	comparable
	open() bool
	enqueue(message []byte) bool
	retire() [][]byte
	full(messages, bytes int) bool
}

// say queues messages on a pair's connection, or where they wait for the next one. The caller holds
// x.mu.
func say[C line](x *job, lines map[pair]C, pending map[pair][][]byte, p pair, messages ...[]byte) {
	for _, m := range messages {
		if c, ok := lines[p]; !ok || !c.enqueue(m) {
			pending[p] = x.queueMessage(pending[p], m)
		}
	}
}

// queueMessage appends to a queue of pending messages, and counts as lost what does not fit. Where
// nobody repeats that, some worker would wait forever, and the job fails instead.
func (x *job) queueMessage(queue [][]byte, message []byte) [][]byte {
	if len(queue) < maxPending {
		return append(queue, message)
	}
	x.lose(lostFull, 1)
	if !x.router.Resend() && x.failed == nil {
		x.failed = reason.Errorf(reason.Memory, "job %s: %d messages wait for a connection between a worker and a server, and another one, which nobody repeats, was dropped: restart the job", x.name, maxPending)
		x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", x.failed)
	}
	return queue
}

// rankOf returns the rank in a node id.
func rankOf(id int32) int32 {
	_, rank, _ := pslite.Rank(id)
	return int32(rank)
}

// join makes c the connection for a pair's messages. What an older connection has queued comes
// first, then what waited: order per pair is kept.
func join[C line](x *job, lines map[pair]C, pending map[pair][][]byte, p pair, c C) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !c.open() {
		return // or it would never leave
	}
	var left [][]byte
	// A node that reconnects makes its new connection before this proxy has seen the end of the old
	// one.
	if old, ok := lines[p]; ok && old != c {
		left = old.retire()
	}
	left = append(left, pending[p]...)
	lines[p] = c
	delete(pending, p)
	say(x, lines, pending, p, left...)
	x.wakeHeldUp() // the queue has another connection
}

// removeConnection removes a closed connection. What was still queued on it waits for the next one.
func (x *job) removeConnection(w waiter) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open[w] {
		delete(x.open, w)
		x.left = time.Now()
	}
	switch c := w.(type) {
	case *requests:
		delete(x.heldUp, c)
		remove(x, x.up, x.pendingUp, c)
		x.endFlight(c)
	case *answers:
		remove(x, x.down, x.pendingDown, c)
	}
}

// remove removes c from the pair that it serves.
func remove[C line](x *job, lines map[pair]C, pending map[pair][][]byte, c C) {
	for p, other := range lines {
		if other == c {
			x.router.SetCarried(false) // until another has taken its place
			// What c has queued is older than what waits.
			later := pending[p]
			delete(lines, p)
			delete(pending, p)
			say(x, lines, pending, p, append(c.retire(), later...)...)
		}
	}
}

// succeeded is called when a node of this host registers with the run's scheduler: either a node of
// the run comes back, or another run begins, and the table that follows shows which. Where the
// scheduler's host has no proxy just now that table does not come this way, and the new run could
// be taken for this one. It returns true where the run can be dropped safely; otherwise it marks
// the run as unsure, so that requests are refused rather than misrouted. The caller holds jobs.mu.
func (x *job) succeeded() (drop bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// With connections the run is alive, and the registration is that of a node that comes back.
	if x.connected() || x.site == nil || x.jobs.plans == nil {
		return false
	}
	if x.router.Ready() && x.router.Table().Empty() && len(x.router.Holds()) == 0 {
		return true // a node that comes back asks others, as one does that comes late
	}
	// What is pending is for nodes of the old run, and must not reach those of a new one at the
	// same addresses.
	x.losePending(lostOver)
	x.unsure = true
	return false
}

// errUnsure is why requests of an unsure run fail.
var errUnsure = errors.New("keys of the job are displaced, and a node registered again: this may be a new run, but the node table did not pass through a proxy on the scheduler's host; start that proxy, then restart the job")

// sure notes that the run goes on.
func (x *job) sure() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unsure = false
}

// lines removes and returns the open connections of the job's pairs, with their destinations.
func (x *job) lines() map[waiter]netip.AddrPort {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := map[waiter]netip.AddrPort{}
	for _, c := range x.up {
		if c.open() {
			all[c] = c.destination
		}
	}
	for _, c := range x.down {
		if c.open() {
			all[c] = c.destination
		}
	}
	clear(x.up)
	clear(x.down)
	return all
}

// request shows a worker's request to the router; passes means that it goes on unchanged to its
// server. With errLater it has to be shown again.
func (x *job) request(c *requests, m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	err = x.locked(func() error {
		if x.failed != nil {
			return x.failed
		}
		if x.unsure {
			return errUnsure
		}
		if d == pslite.BytePSRaw {
			passes, err = x.wholeRequest(c, m)
			return err
		}
		x.worker(c.sender)
		passes = x.router.Request(c.sender, rankOf(c.peer), &m.Meta, m.Keys(), d)
		x.keepUses()
		if !passes && !c.ended && x.crowded(pair{c.sender, rankOf(c.peer)}) {
			x.heldUp[c] = true
			return errLater
		}
		x.notePush(c, m)
		return nil
	})
	return passes, err
}

// worker adds a worker that was seen on this host and is not known to the router yet.
func (x *job) worker(id int32) {
	if x.ledgers[id] == nil {
		x.local[id] = true
		x.addWorker(id)
		if err := x.save(); err != nil {
			x.jobs.log.Error("cannot save a worker's identity: it would be unknown after a restart", "job", x.name, "worker", id, "error", err)
		}
	}
}

// takeRequest gives the router a whole request that it did not pass.
func (x *job) takeRequest(c *requests, m *pslite.Message, d pslite.Dialect) error {
	return x.locked(func() error {
		if d == pslite.BytePSRaw {
			return x.reroute(c, m, d)
		}
		return x.router.Take(c.sender, rankOf(c.peer), m, d)
	})
}

// workerAck shows an ACK of a worker to the router.
func (x *job) workerAck(c *requests, signature uint64) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.sender)
		passes = x.router.WorkerAck(c.sender, rankOf(c.peer), signature)
		return nil
	})
	return passes, err
}

// serverAck shows an ACK of a server to the router.
func (x *job) serverAck(c *answers, signature uint64) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.peer)
		passes = x.router.ServerAck(rankOf(c.sender), c.peer, signature)
		return nil
	})
	return passes, err
}

// answer shows the meta of a server's answer to the router.
func (x *job) answer(c *answers, m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.peer)
		passes = x.router.Answer(rankOf(c.sender), c.peer, &m.Meta)
		return nil
	})
	return passes, err
}

// takeAnswer gives the router a whole answer that it did not pass.
func (x *job) takeAnswer(c *answers, m *pslite.Message, d pslite.Dialect) error {
	return x.locked(func() error { return x.router.TakeAnswer(rankOf(c.sender), c.peer, m, d) })
}

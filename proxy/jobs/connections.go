package jobs

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// pair is a worker and a server, by rank.
type pair struct{ worker, server int32 }

// maxPending is how many messages wait for one connection at most.
const maxPending = 4096

// enqueueOut hands a message to the connection it belongs to, or keeps it until there
// is one.
func (x *job) enqueueOut(o *route.Out) {
	if o.Frames == nil {
		x.failed = fmt.Errorf("job %s: a request to server %d waited while one of its keys moved, and cannot be split among the servers that have its keys now", x.name, o.Server)
		x.jobs.log.Error("a job's requests are refused", "job", x.name, "error", x.failed)
		return
	}
	p, message := pair{o.Worker, o.Server}, appendMessage(nil, o.Frames)
	if o.ToWorker {
		say(x, x.down, x.pendingDown, p, message)
	} else {
		say(x, x.up, x.pendingUp, p, message)
	}
}

// A line is a connection over which the router has its say: a worker's to a
// server, or the reverse.
type line interface {
	comparable
	open() bool
	enqueue(message []byte) bool
	retire() [][]byte
}

// say puts messages into a pair's connection, or where they wait for it. The caller
// holds x.mu.
func say[C line](x *job, lines map[pair]C, pending map[pair][][]byte, p pair, messages ...[]byte) {
	for _, m := range messages {
		if c, ok := lines[p]; !ok || !c.enqueue(m) {
			pending[p] = x.queueMessage(pending[p], m)
		}
	}
}

func (x *job) queueMessage(queue [][]byte, message []byte) [][]byte {
	if len(queue) >= maxPending {
		x.lost++
		return queue
	}
	return append(queue, message)
}

func rankOf(id int32) int32 {
	_, rank, _ := pslite.Rank(id)
	return int32(rank)
}

// join makes c the connection over which a pair's messages go.
func join[C line](x *job, lines map[pair]C, pending map[pair][][]byte, p pair, c C) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !c.open() {
		return // or it would never leave
	}
	var left [][]byte
	if old, ok := lines[p]; ok && old != c {
		left = old.retire()
	}
	left = append(left, pending[p]...)
	lines[p] = c
	delete(pending, p)
	say(x, lines, pending, p, left...)
}

// removeConnection takes a closed connection out. What was still to be said on it waits for
// the next one.
func (x *job) removeConnection(w waiter) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open[w] {
		delete(x.open, w)
		x.left = time.Now()
	}
	switch c := w.(type) {
	case *requests:
		remove(x, x.up, x.pendingUp, c)
	case *answers:
		remove(x, x.down, x.pendingDown, c)
	}
}

func remove[C line](x *job, lines map[pair]C, pending map[pair][][]byte, c C) {
	for p, other := range lines {
		if other == c {
			x.router.SetCarried(false) // until another has taken its place
			later := pending[p]
			delete(lines, p)
			delete(pending, p)
			say(x, lines, pending, p, append(c.retire(), later...)...)
		}
	}
}

// succeeded is called when a node of this host registers with the scheduler of the
// run: a node of the run comes back, or another run begins, and the table that
// follows says which. Where the scheduler's host has no proxy just now no table
// comes this way. The caller holds jobs.mu. It reports whether the run is of no use
// any more: another one must not be taken for it.
func (x *job) succeeded() (drop bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.connected() || x.site == nil || x.jobs.plans == nil {
		return false
	}
	if x.router.Ready() && x.router.Table().Empty() && len(x.router.Holds()) == 0 {
		return true // a node that comes back asks others, as one does that comes late
	}
	x.lost += dropPending(x.pendingUp) + dropPending(x.pendingDown)
	x.unsure = true
	return false
}

// errUnsure is why requests fail whose run is not known.
var errUnsure = errors.New("keys of the job are displaced, and a node registered anew: it is not known whether another run has begun, since the node table did not come through a proxy on the scheduler's host; start that proxy, then the job again")

// sure says that the run goes on.
func (x *job) sure() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unsure = false
}

// lines are the open connections of the job's pairs, and where they go to.
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

// errUnroutable is why a request cannot be served: its answers would go wrong.
var errUnroutable = errors.New("requests of this dialect cannot be split")

// request gives a worker's request to the router; passes says whether it goes on
// unchanged to its server. BytePS answers on the connection of the request, so a
// request of it cannot be split; it passes as long as none of its keys is displaced.
func (x *job) request(c *requests, m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	err = x.locked(func() error {
		if x.failed != nil {
			return x.failed
		}
		if x.unsure {
			return errUnsure
		}
		if d == pslite.BytePSRaw {
			if !x.router.Table().Touches(m.Keys()) {
				passes = true
				x.unsupported = "BytePS answers on the asker's connection; its keys are not moved"
				return nil
			}
			return errUnroutable
		}
		x.worker(c.sender)
		x.notePush(c, m)
		passes = x.router.Request(c.sender, rankOf(c.peer), &m.Meta, m.Keys(), d)
		return nil
	})
	return passes, err
}

// worker makes sure that the router knows a worker that was seen on this host.
func (x *job) worker(id int32) {
	if x.ledgers[id] == nil {
		x.local[id] = true
		x.addWorker(id)
		if err := x.save(); err != nil {
			x.jobs.log.Error("a worker would not be known after a restart", "job", x.name, "worker", id, "error", err)
		}
	}
}

func (x *job) takeRequest(c *requests, m *pslite.Message, d pslite.Dialect) error {
	return x.locked(func() error { return x.router.Take(c.sender, rankOf(c.peer), m, d) })
}

func (x *job) workerAck(c *requests, signature uint64) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.sender)
		passes = x.router.WorkerAck(c.sender, rankOf(c.peer), signature)
		return nil
	})
	return passes, err
}

func (x *job) serverAck(c *answers, signature uint64) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.peer)
		passes = x.router.ServerAck(rankOf(c.sender), c.peer, signature)
		return nil
	})
	return passes, err
}

func (x *job) answer(c *answers, m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.peer)
		passes = x.router.Answer(rankOf(c.sender), c.peer, &m.Meta)
		return nil
	})
	return passes, err
}

func (x *job) takeAnswer(c *answers, m *pslite.Message, d pslite.Dialect) error {
	return x.locked(func() error { return x.router.TakeAnswer(rankOf(c.sender), c.peer, m, d) })
}

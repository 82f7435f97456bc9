package jobs

import (
	"errors"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// pair is a worker and a server, by rank.
type pair struct{ worker, server int32 }

// maxPending is how many messages wait for one connection at most.
const maxPending = 4096

// put hands a message to the connection it belongs to, or keeps it until there
// is one.
func (x *job) put(o *route.Out) {
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
	put(message []byte) bool
	retire() [][]byte
}

// say puts messages into a pair's connection, or where they wait for it. x.mu is
// locked.
func say[C line](x *job, lines map[pair]C, pending map[pair][][]byte, p pair, messages ...[]byte) {
	for _, m := range messages {
		if c, ok := lines[p]; !ok || !c.put(m) {
			pending[p] = x.keep(pending[p], m)
		}
	}
}

func (x *job) keep(queue [][]byte, message []byte) [][]byte {
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

// leave takes a closed connection out. What was still to be said on it waits for
// the next one.
func (x *job) leave(w waiter) {
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
			later := pending[p]
			delete(lines, p)
			delete(pending, p)
			say(x, lines, pending, p, append(c.retire(), later...)...)
		}
	}
}

// dropStale drops what waits for connections where there are none: of the
// processes that it was meant for none is left.
func (x *job) dropStale() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.connected() {
		x.lost += dropPending(x.pendingUp) + dropPending(x.pendingDown)
	}
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

func (x *job) request(c *requests, m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	err = x.locked(func() error {
		if x.failed != nil {
			return x.failed
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

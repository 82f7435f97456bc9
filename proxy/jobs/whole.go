package jobs

import (
	"errors"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Requests of BytePS go whole to the owner of their key, over another connection of their worker's
// (see route/whole.go). Values are up to some MB and come as fast as the worker writes, while the
// other connection may be slow, or not there yet. So a connection is held up when it has a request
// for a pair whose queue is full: nothing more is read of it until the queue has room.
//
// Two connections may be held up for each other's queues. That does not stand still: what is held
// up is what the process sends, between two messages; what the router has put in goes on, so that a
// queue empties as fast as its own link takes it.

const (
	// mostQueued and mostQueuedBytes are what a pair's connection may have queued, or a pair
	// without one, before connections with more for it are held up. Each of those may still add
	// the message that it was reading. mostQueued is well below maxPending: nothing is dropped. The
	// same holds for requests of a worker that wait for one server (crowd.go).
	mostQueued      = 1024
	mostQueuedBytes = 32 << 20
)

// errLater means that a message cannot be judged or taken yet. It stays unread, as does all behind
// it. Of a process that has ended its side all is read at once: otherwise nobody would see its end.
var errLater = errors.New("the message has to wait")

// wholeRequest shows the router a request that cannot be split; passes means that it goes on
// unchanged to the server that it names. The caller holds x.mu.
func (x *job) wholeRequest(c *requests, m *pslite.Message) (passes bool, err error) {
	x.unsupported = "BytePS answers on the asker's connection; its keys are not moved"
	server := rankOf(c.peer)
	owner, err := x.router.Recipient(c.sender, server, &m.Meta, m.Keys())
	switch {
	case err != nil:
		return false, err
	case owner == server:
		x.router.PassWhole(c.sender, server, &m.Meta)
		return true, nil
	case !x.router.Ready(): // it may be elsewhere, say other hosts
		x.heldUp[c] = true
		return false, errLater
	case full(x.up, x.pendingUp, pair{c.sender, owner}) && !c.ended:
		x.heldUp[c] = true
		return false, errLater
	}
	return false, nil
}

// reroute sends a whole request to the owner of its key; the caller holds x.mu.
func (x *job) reroute(c *requests, m *pslite.Message, d pslite.Dialect) error {
	server := rankOf(c.peer)
	owner, err := x.router.Recipient(c.sender, server, &m.Meta, m.Keys())
	if err != nil {
		return err
	}
	x.worker(c.sender)
	x.router.Reroute(c.sender, server, owner, m, d)
	return nil
}

// full implements line.
func (c *requests) full(messages, bytes int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	full := len(c.queue)+messages >= mostQueued || c.queued+bytes >= mostQueuedBytes
	c.holdsUp = c.holdsUp || full
	return full
}

// hasRoom reports, once after full, that half of the queue has gone; the caller holds c.mu.
func (c *requests) hasRoom() bool {
	if !c.holdsUp || len(c.queue) > mostQueued/2 || c.queued > mostQueuedBytes/2 {
		return false
	}
	c.holdsUp = false
	return true
}

// letGo has held up connections look again.
func (x *job) letGo() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wakeHeldUp()
}

// wakeHeldUp is letGo for a caller that holds x.mu. It is called when a queue has room, when it has
// another connection, and in each tick, as for what may be known of keys by then.
func (x *job) wakeHeldUp() {
	for c := range x.heldUp {
		c.lookAgain()
	}
	clear(x.heldUp)
}

// lookAgain has the direction look again at the message that waits.
func (c *requests) lookAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeUp()
}

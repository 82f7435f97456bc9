package van

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
)

// inboxSize is how many messages may wait for one customer before the connection that
// brings them stops being read.
const inboxSize = 256

// A Customer is one end of an application: it receives the messages with its app and
// customer id, one after the other, and counts the answers to its own requests. A
// node may have several. PS-lite's servers have one for each app, whose customer id
// is the app's.
type Customer struct {
	van     *Van
	app, id int
	inbox   *queue
	handle  func(ctx context.Context, m *Message) error

	mu      sync.Mutex         // guards the rest
	next    int32              // the timestamp of the next request
	pending map[int32]*pending // by timestamp
}

// pending is a request that not all nodes have answered.
type pending struct {
	expect   []int         // node ids whose answers are missing; guarded by the customer's mu
	done     chan struct{} // closed when the last has come and finished has returned
	finished func() error
}

// NewCustomer registers an end point. handle gets each of its messages, in one
// goroutine and in order; an answer is counted after handle returns, so that whoever
// waits for it sees what handle has done. An error of handle ends the van. The
// message is released when handle returns, unless it retains it.
func (v *Van) NewCustomer(app, id int, handle func(ctx context.Context, m *Message) error) (*Customer, error) {
	c := &Customer{van: v, app: app, id: id, inbox: newQueue(inboxSize), handle: handle, pending: make(map[int32]*pending)}
	if err := v.addCustomer(c); err != nil {
		return nil, err
	}
	v.startGoroutine(c.handleMessages)
	return c, nil
}

// NewRequest returns the timestamp of a request that the given nodes will answer,
// each once. finished, if not nil, is called when the last has, in the goroutine of
// handle and before Wait returns.
func (c *Customer) NewRequest(nodes []int, finished func() error) (int32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit := int32(math.MaxInt32)
	if c.van.config.Resend {
		limit = 1 << 30 // signatures repeat beyond
	}
	if c.next == limit {
		return 0, fmt.Errorf("no timestamp is left after %d requests", limit)
	}
	ts := c.next
	c.next++
	c.pending[ts] = &pending{expect: slices.Clone(nodes), done: make(chan struct{}), finished: finished}
	return ts, nil
}

// Wait blocks until all nodes have answered the request. It gives up when the van's
// patience is over. A request may be waited for by several goroutines, and again
// after it was answered.
func (c *Customer) Wait(ctx context.Context, ts int32) error {
	c.mu.Lock()
	p := c.pending[ts]
	c.mu.Unlock()
	if p == nil {
		return nil // answered before
	}
	return c.van.wait(ctx, p.done, c.van.config.Patience, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Sprintf("the answer to request %d from %s", ts, c.van.describe(p.expect))
	})
}

// Complete finishes a request that no node is to answer.
func (c *Customer) Complete(ts int32) error { return c.answered(ts, 0) }

// answered counts the answer of a node, 0 for none. An answer that nobody waits for
// is an error: a repetition that was not recognized, or a message that was mistaken
// for another.
func (c *Customer) answered(ts int32, node int) error {
	c.mu.Lock()
	p := c.pending[ts]
	if p == nil {
		c.mu.Unlock()
		return fmt.Errorf("unexpected answer from node %d to request %d of app %d", node, ts, c.app)
	}
	if node != 0 {
		at := slices.Index(p.expect, node)
		if at < 0 {
			c.mu.Unlock()
			return fmt.Errorf("duplicate or unexpected answer from node %d to request %d of app %d", node, ts, c.app)
		}
		// Answers are checked off by node, so that a repeated one does not stand for
		// another node's.
		p.expect = slices.Delete(p.expect, at, at+1)
	}
	// finished is called without the lock, since it may make requests. The request
	// stays pending until then: Wait must not return before finished has.
	last := len(p.expect) == 0
	c.mu.Unlock()
	if !last {
		return nil
	}
	if p.finished != nil {
		if err := p.finished(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	delete(c.pending, ts)
	c.mu.Unlock()
	close(p.done)
	return nil
}

// handleMessages handles messages until the van ends.
func (c *Customer) handleMessages(ctx context.Context) error {
	for {
		m, err := c.inbox.get(ctx)
		if err != nil {
			return nil // the van ends, for a reason that it knows
		}
		err = c.handle(ctx, m)
		// Release may have the message overwritten by the next one.
		ts, from, request := m.Meta.Timestamp, m.Sender, m.Meta.Request
		m.Release()
		if err == nil && !request {
			err = c.answered(ts, from)
		}
		if err != nil {
			// The van has ended, which is why handling failed; its cause is known
			// already.
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

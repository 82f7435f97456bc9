package van

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
)

// inboxSize is how many messages may wait for one customer.
const inboxSize = 256

// A Customer is one end of an application: it receives the messages with its
// app and customer id, one after the other, and counts the answers to its own
// requests. Several may live in one node.
type Customer struct {
	van     *Van
	app, id int
	inbox   *queue
	handle  func(ctx context.Context, m *Message) error

	mu      sync.Mutex         // guards the rest
	next    int32              // timestamp
	pending map[int32]*pending // by timestamp
}

// pending is a request that has not been answered by all.
type pending struct {
	expect   []int // node ids whose answers are missing
	done     chan struct{}
	finished func() error
}

// NewCustomer registers an end point. handle gets each of its messages in one
// goroutine; an answer is counted after handle returns. An error of handle
// ends the van.
func (v *Van) NewCustomer(app, id int, handle func(ctx context.Context, m *Message) error) (*Customer, error) {
	c := &Customer{van: v, app: app, id: id, inbox: newQueue(inboxSize), handle: handle, pending: make(map[int32]*pending)}
	if err := v.addCustomer(c); err != nil {
		return nil, err
	}
	v.startGoroutine(c.handleMessages)
	return c, nil
}

// NewRequest returns the timestamp of a request that the given nodes will
// answer, each once. finished, where not nil, is called when the last has, in
// the goroutine of handle.
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

// Wait waits until all nodes have answered the request. It gives up after the
// van's patience.
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

// answered counts the answer of a node, 0 for none.
func (c *Customer) answered(ts int32, node int) error {
	c.mu.Lock()
	p := c.pending[ts]
	if p == nil {
		c.mu.Unlock()
		return fmt.Errorf("node %d answers request %d of app %d, which waits for no answer", node, ts, c.app)
	}
	if node != 0 {
		at := slices.Index(p.expect, node)
		if at < 0 {
			c.mu.Unlock()
			return fmt.Errorf("node %d answers request %d of app %d twice, or was not asked", node, ts, c.app)
		}
		p.expect = slices.Delete(p.expect, at, at+1)
	}
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
		ts, from, request := m.Meta.Timestamp, m.Sender, m.Meta.Request
		m.Release()
		if err == nil && !request {
			err = c.answered(ts, from)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

package handover

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// errHoldsNone means that there is no agent that can hold another connection.
var errHoldsNone = errors.New("the agent accepts no more connections, or has disconnected")

// StayUntil has the session with the agent outlast Run's context until a channel is closed: a
// proxy that ends in order hands its connections over in between. Call it before Run.
func (c *Client) StayUntil(ended <-chan struct{}) { c.stay = ended }

// talking returns the context of sessions.
func (c *Client) talking(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.stay == nil {
		return context.WithCancel(ctx)
	}
	talking, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { <-c.stay; hangUp() })
	return talking, func() { stop(); hangUp() }
}

// Holds returns how many more connections the agent can hold for the next proxy, and for how
// long once this one has ended; 0: none, or there is no agent now.
func (c *Client) Holds() (most int, within time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil || c.keeping.holds == 0 {
		return 0, 0
	}
	return max(0, c.keeping.most-len(c.keeping.held)), c.keeping.holds
}

// Stays returns an error if the agent is about to end as well as this proxy, or does not
// answer. An agent of a version that cannot be asked is taken to stay.
func (c *Client) Stays(ctx context.Context) error {
	c.mu.Lock()
	old := c.conn != nil && !c.answersStays
	c.mu.Unlock()
	if old {
		return nil
	}
	_, err := c.ask(ctx, Message{Kind: Stays})
	return err
}

// Leave has the agent give a connection, with the file that describes it, to the next proxy,
// under a number that no other has. Both stay the caller's. It blocks for up to sendTimeout.
func (c *Client) Leave(id uint64, socket *net.TCPConn, state *os.File) error {
	c.mu.Lock()
	conn := c.conn
	if conn == nil || c.keeping.holds == 0 || len(c.keeping.held) >= c.keeping.most {
		c.mu.Unlock()
		return errHoldsNone
	}
	// It takes up room at the agent until this proxy has ended.
	c.keeping.held[id] = true
	c.mu.Unlock()
	return conn.send(Message{Kind: Keep, ID: id}, socket, state)
}

// Returned notes that this proxy has taken what the agent gave under a number, and has the
// agent close its own.
func (c *Client) Returned(id uint64) {
	c.mu.Lock()
	// nextOrder sends Drop only for what the agent is known to hold.
	if c.keeping.held != nil {
		c.keeping.held[id] = true
	}
	c.mu.Unlock()
	c.Drop(id)
}

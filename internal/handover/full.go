package handover

import "context"

// SetFull tells the agent whether this proxy takes no more connections. While it takes none,
// and no other proxy does, connects go direct, or fail where they must not. It does not
// block.
func (c *Client) SetFull(full bool) {
	c.mu.Lock()
	c.full = full
	c.mu.Unlock()
	c.look()
}

// look wakes tellFull.
func (c *Client) look() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// tellFull sends what SetFull, Keep and Drop have changed, until ctx ends.
func (c *Client) tellFull(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		}
		c.tellKept()
		c.mu.Lock()
		conn, full := c.conn, c.full
		// An agent that does not ping is of a version that does not know Full.
		due := conn != nil && c.pinged && full != c.told
		if due {
			c.told = full
		}
		c.mu.Unlock()
		if !due {
			continue
		}
		if err := conn.Send(Message{Kind: Full, On: full}, nil); err != nil {
			conn.giveUp(err)
		}
	}
}

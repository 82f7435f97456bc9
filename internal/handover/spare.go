package handover

import "net/netip"

// Spares sets a function that reports whether the proxy can be spared: whether connections of
// jobs may go direct, except where the agent finds that their link is slow. It must not block.
// Call it before Run; the agent is told of changes when [Client.Judge] is called.
func (c *Client) Spares(spares func() bool) { c.spares = spares }

// Judge tells the agent what Spares says, if that has changed, and which connections gain
// nothing by the proxy, by where they come from: its own network namespace and address. It does
// nothing without an agent that knows what to do with it.
func (c *Client) Judge(unneeded []Source) {
	on := c.spares != nil && c.spares()
	c.mu.Lock()
	conn, changed := c.conn, on != c.toldSpares
	if !c.judges || conn == nil {
		c.mu.Unlock()
		return
	}
	c.toldSpares = on
	c.mu.Unlock()
	var err error
	if changed {
		err = conn.Send(Message{Kind: Spares, On: on}, nil)
	}
	for _, s := range unneeded {
		if err == nil {
			err = conn.Send(Message{Kind: Unneeded, Netns: s.Netns, Address: s.Address}, nil)
		}
	}
	if err != nil {
		conn.giveUp(err)
	}
}

// Source is where a connection of a job comes from.
type Source struct {
	Netns   uint64 // inode
	Address netip.AddrPort
}

package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Errors of [Client.Owner] that say that there is nobody to ask.
var (
	ErrNoAgent  = errors.New("there is no agent")
	ErrOldAgent = errors.New("the agent is of a version that does not tell who listens where")
)

// Owner returns the number of the cgroup whose connects the agent has
// redirected and one of whose processes listens at an address, in the network
// namespace with that inode: 0 where no such process does. found says whether
// anybody listens there at all. While somebody does whom the agent does not
// know yet it looks around before it answers.
func (c *Client) Owner(ctx context.Context, netns uint64, at netip.AddrPort) (cgroup uint64, found bool, err error) {
	c.mu.Lock()
	old := c.conn != nil && !c.owners
	c.mu.Unlock()
	if old {
		return 0, false, ErrOldAgent
	}
	m, err := c.ask(ctx, Message{Kind: Owner, Netns: netns, Address: at})
	if err != nil {
		return 0, false, fmt.Errorf("asking who listens at %s: %w", at, err)
	}
	return m.Cgroup, m.Found, nil
}

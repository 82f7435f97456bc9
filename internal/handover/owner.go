package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Errors of [Client.Owner] which mean that nobody can be asked.
var (
	ErrNoAgent  = errors.New("no agent")
	ErrOldAgent = errors.New("the agent's version does not support looking up listeners")
)

// Owner returns the cgroup, among those whose connects the agent has redirected, that has a
// process which listens at an address, in the network namespace with that inode: 0 where none
// has. found reports whether any process listens there. It blocks until the agent answers or
// ctx ends; the agent first looks for processes that it does not know yet.
func (c *Client) Owner(ctx context.Context, netns uint64, at netip.AddrPort) (cgroup uint64, found bool, err error) {
	c.mu.Lock()
	old := c.conn != nil && !c.owners
	c.mu.Unlock()
	if old {
		return 0, false, ErrOldAgent
	}
	m, err := c.ask(ctx, Message{Kind: Owner, Netns: netns, Address: at})
	if err != nil {
		return 0, false, fmt.Errorf("looking up the listener at %s: %w", at, err)
	}
	return m.Cgroup, m.Found, nil
}

package handover

import (
	"net"
	"os"
	"slices"
	"syscall"
	"time"
)

// keeping is the client's part of [proxy.Keeper]: the connections that the agent is to hold,
// and the orders that it was sent. Orders are sent by the goroutine of tellFull, in the order
// of toTell.
type keeping struct {
	take    func(id uint64, socket, page *os.File) // what an ended proxy left; nil: nothing is taken
	settled func()                                 // all of it has been named

	// Client.mu guards the rest.
	most   int                 // that this agent can hold
	holds  time.Duration       // for how long, once this proxy has ended; 0: it is of an older version
	wanted map[uint64]heldPair // to be held; at most most
	toTell []uint64            // numbers of wanted or dropped connections, to be sent to this agent
	held   map[uint64]bool     // numbers that this agent was sent
	lacks  bool                // the agent had no room for one that is wanted
}

// heldPair is a connection and its page, which belong to the proxy.
type heldPair struct {
	socket *net.TCPConn
	page   *os.File
}

// Keeps sets the functions for what previous proxies left. take is called with the connection
// and the page, or state, of each, and owns both; settled is called once an agent has named
// all of them. Call it before Run.
func (c *Client) Keeps(take func(id uint64, socket, page *os.File), settled func()) {
	c.keeping.take, c.keeping.settled = take, settled
}

// Most returns how many connections the agent can hold for this proxy; 0: none, or there is
// no agent now.
func (c *Client) Most() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keeping.most
}

// Keep has the agent, and each one after it, hold a connection and its page under a number,
// until Drop. Both stay the caller's, and must not be closed before Drop. It does not block.
func (c *Client) Keep(id uint64, socket *net.TCPConn, page *os.File) {
	c.mu.Lock()
	if c.keeping.wanted == nil {
		c.keeping.wanted = map[uint64]heldPair{}
	}
	c.keeping.wanted[id] = heldPair{socket, page}
	c.keeping.toTell = append(c.keeping.toTell, id)
	c.mu.Unlock()
	c.look()
}

// Took notes that the agent holds a connection under a number because it has given it to this
// proxy.
func (c *Client) Took(id uint64, socket *net.TCPConn, page *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeping.wanted == nil {
		c.keeping.wanted = map[uint64]heldPair{}
	}
	c.keeping.wanted[id] = heldPair{socket, page}
	if c.keeping.held != nil {
		c.keeping.held[id] = true
	}
}

// Drop has the agent close what it holds under a number. It does not block.
func (c *Client) Drop(id uint64) {
	c.mu.Lock()
	delete(c.keeping.wanted, id)
	c.keeping.toTell = append(c.keeping.toTell, id)
	c.mu.Unlock()
	c.look()
}

// attach begins with an agent that can hold up to most connections, for holds once this proxy
// has ended. Everything wanted is sent to it. The caller holds c.mu.
func (k *keeping) attach(most int, holds time.Duration) {
	k.most, k.holds, k.held, k.toTell, k.lacks = most, holds, map[uint64]bool{}, nil, false
	if most == 0 {
		return
	}
	for id := range k.wanted {
		k.toTell = append(k.toTell, id)
	}
	slices.Sort(k.toTell) // links for acknowledgements come first
}

// nextOrder removes the next order for the agent from toTell; the caller holds c.mu. What was
// dropped before it was sent needs none.
func (k *keeping) nextOrder() (m Message, files []syscall.Conn, ok bool) {
	for len(k.toTell) > 0 {
		id := k.toTell[0]
		k.toTell = k.toTell[1:]
		pair, wanted := k.wanted[id]
		switch {
		// Marked before it is sent. A connection that cannot be sent has been closed, and its
		// Drop follows.
		case wanted && !k.held[id] && len(k.held) < k.most:
			k.held[id] = true
			return Message{Kind: Keep, ID: id}, []syscall.Conn{pair.socket, pair.page}, true
		case wanted && !k.held[id]:
			k.lacks = true // until there is room
		case !wanted && k.held[id]:
			delete(k.held, id)
			k.fill()
			return Message{Kind: Drop, ID: id}, nil, true
		}
	}
	return m, nil, false
}

// fill has connections sent again for which the agent had no room. The caller holds c.mu.
func (k *keeping) fill() {
	if !k.lacks {
		return
	}
	k.lacks = false
	for id := range k.wanted {
		if !k.held[id] && !slices.Contains(k.toTell, id) {
			k.toTell = append(k.toTell, id)
		}
	}
}

// tellKept sends the agent all orders that are due.
func (c *Client) tellKept() {
	for {
		c.mu.Lock()
		conn := c.conn
		m, files, ok := c.keeping.nextOrder()
		c.mu.Unlock()
		if !ok || conn == nil {
			return
		}
		// A connection that has been closed meanwhile cannot be held.
		if err := conn.send(m, files...); err != nil && m.Kind == Drop {
			conn.giveUp(err)
		}
	}
}

// takeKept passes on what an ended proxy left.
func (c *Client) takeKept(id uint64, files []*os.File) {
	if c.keeping.take == nil {
		for _, f := range files {
			f.Close()
		}
		return
	}
	c.keeping.take(id, files[0], files[1])
}

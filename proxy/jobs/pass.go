package jobs

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// errStands is what Read returns of a connection that was halted.
var errStands = errors.New("the connection stands between two messages")

// ResumeOutbound is [Jobs.Outbound] of a connection that a proxy before this one has
// carried: ready is the body of the process's READY command, left what was read of what
// it said next.
func (j *Jobs) ResumeOutbound(conn *net.TCPConn, destination netip.AddrPort, scope Scope, origin string, ready, left []byte) (net.Conn, error) {
	c := j.Outbound(conn, destination, scope, origin).(*requests)
	c.stream.greeted = true
	c.far.done.Store(true)
	if len(left) > 0 {
		c.buf = make([]byte, max(readAhead, len(left)))
		c.w = copy(c.buf, left)
	}
	return c, c.ready(senderOf(ready))
}

// ResumeInbound is [Jobs.Inbound] likewise; ready is of the process at the far end.
func (j *Jobs) ResumeInbound(conn *net.TCPConn, destination netip.AddrPort, scope Scope, from Peer, ready []byte) (net.Conn, error) {
	c := j.Inbound(conn, destination, scope, from).(*answers)
	c.stream.greeted = true
	c.process.done.Store(true)
	return c, c.ready(senderOf(ready))
}

// senderOf returns the node id in a READY command, Empty where there is none.
func senderOf(ready []byte) int32 {
	if name, data, err := zmtp.ParseCommand(ready); err == nil && string(name) == zmtp.CommandReady {
		if r, err := zmtp.ParseReady(data); err == nil {
			if id, ok := pslite.ParseIdentity(r.Identity); ok {
				return id
			}
		}
	}
	return pslite.Empty
}

// Halt implements [relay.Halter].
func (c *requests) Halt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.halt = true
	c.tcp.SetReadDeadline(time.Unix(1, 0))
}

// Halted implements [relay.Halter].
func (c *requests) Halted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stands
}

// stand reports whether Read is to end here, between two messages.
func (c *requests) stand() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stands = c.halt && c.stream.between()
	return c.stands
}

// GoOn has a connection that was halted go on over another link, from another proxy.
func (c *requests) GoOn(Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.halt, c.stands = false, false
}

// Leave returns what was read of the process's messages and not handed on, for the
// proxy that goes on with the connection, which then only is to be closed.
func (c *requests) Leave() ([]byte, error) { return bytes.Clone(c.buf[c.r:c.w]), nil }

// GoOn is [requests.GoOn].
func (c *answers) GoOn(from Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from != nil {
		c.from, c.vetted = from, nil
	}
}

// leaveWithin bounds how long a process may take to read the queue.
const leaveWithin = 2 * time.Second

// Leave writes the queue and has nothing written after it. With an error the
// process may have got a part of a message.
func (c *answers) Leave() ([]byte, error) {
	if err := c.tcp.SetWriteDeadline(time.Now().Add(leaveWithin)); err != nil {
		return nil, err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		err := c.writeQueued()
		c.mu.Lock()
		done := len(c.queue) == 0 || err != nil || !c.stream.between() || !c.process.done.Load()
		c.over = c.over || done
		c.mu.Unlock()
		if done {
			return nil, err
		}
	}
}

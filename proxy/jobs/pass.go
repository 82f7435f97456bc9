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

// errStands is returned by Read of a connection that was halted, at the place where it can change
// links.
var errStands = errors.New("the connection is quiesced at a message boundary")

// ResumeOutbound is [Jobs.Outbound] for a connection that another proxy of this host has carried
// before: ready is the body of the process's READY command, and left what was read of its next
// messages and not passed on. An error means that the process is not accepted as the node that it
// claims to be.
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

// ResumeInbound is [Jobs.Inbound] likewise; ready is that of the process at the far end.
func (j *Jobs) ResumeInbound(conn *net.TCPConn, destination netip.AddrPort, scope Scope, from Peer, ready []byte) (net.Conn, error) {
	c := j.Inbound(conn, destination, scope, from).(*answers)
	c.stream.greeted = true
	c.process.done.Store(true)
	return c, c.ready(senderOf(ready))
}

// senderOf returns the node id in a READY command, and Empty where it has none.
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

// Halt implements [relay.Halter]. The deadline wakes a Read that waits for the process.
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

// stand reports whether Read has to end here: it was halted, and is between two messages.
func (c *requests) stand() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stands = c.halt && c.stream.between()
	return c.stands
}

// GoOn lets a connection that was halted go on over another link.
func (c *requests) GoOn(Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.halt, c.stands = false, false
}

// Leave returns a copy of what was read of the process's messages and not passed on, for the proxy
// that goes on with the connection. Afterwards the connection can only be closed.
func (c *requests) Leave() ([]byte, error) { return bytes.Clone(c.buf[c.r:c.w]), nil }

// GoOn lets the connection go on over another link, which comes from another proxy: the sender has
// to be verified again.
func (c *answers) GoOn(from Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from != nil {
		c.from, c.vetted = from, nil
	}
}

// leaveWithin bounds how long the process may take to read the queue.
const leaveWithin = 2 * time.Second

// Leave writes the queue and then refuses more. What the router has for the process afterwards
// waits for the next proxy. With an error the process may have got a part of a message, and the
// connection must be closed.
func (c *answers) Leave() ([]byte, error) {
	if err := c.tcp.SetWriteDeadline(time.Now().Add(leaveWithin)); err != nil {
		return nil, err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		err := c.writeQueued()
		c.mu.Lock()
		// Checked with mu held, so that no message is queued between the last write and over.
		done := len(c.queue) == 0 || err != nil || !c.stream.between() || !c.process.done.Load()
		c.over = c.over || done
		c.mu.Unlock()
		if done {
			return nil, err
		}
	}
}

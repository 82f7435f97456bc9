package jobs

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// ResumeOutbound is [Jobs.Outbound] for a connection that another proxy of this host has carried
// before: ready is the body of the process's READY command. An error means that the process is not
// accepted as the node that it claims to be.
func (j *Jobs) ResumeOutbound(destination netip.AddrPort, scope Scope, origin string, ready []byte) (Line, error) {
	c := j.outbound(destination, scope, origin)
	c.receptive = true
	return c, c.ready(senderOf(ready))
}

// ResumeInbound is [Jobs.Inbound] likewise; ready is that of the process at the far end.
func (j *Jobs) ResumeInbound(destination netip.AddrPort, scope Scope, from Peer, ready []byte) (Line, error) {
	c := j.inbound(destination, scope, from)
	c.receptive = true
	return c, c.ready(senderOf(ready))
}

// senderOf returns the node id in a READY command, and Empty where it has none.
func senderOf(ready []byte) int32 {
	name, data, err := zmtp.ParseCommand(ready)
	if err != nil {
		name = nil
	}
	id, _ := readyOf(string(name), data)
	return id
}

// GoOn implements Line. The process is the same as before.
func (c *requests) GoOn(Peer) {}

// Leave implements Line. What the router has for the process at the far end waits for the next
// connection.
func (c *requests) Leave(net.Conn) error { return nil }

// GoOn implements Line: the sender has to be verified again.
func (c *answers) GoOn(from Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from != nil {
		c.from, c.vetted = from, nil
	}
}

// leaveWithin bounds how long the process may take to read the queue.
const leaveWithin = 2 * time.Second

// Leave implements Line. What the router has for the process afterwards waits for the next proxy.
func (c *answers) Leave(process net.Conn) error {
	if err := process.SetWriteDeadline(time.Now().Add(leaveWithin)); err != nil {
		return err
	}
	for {
		c.mu.Lock()
		due := c.queue
		// Checked with mu held, so that no message is queued between the last write and over.
		done := len(due) == 0 || !c.receptive || c.over
		if c.over = c.over || done; !done {
			c.queue = nil
		}
		c.mu.Unlock()
		if done {
			return nil
		}
		n, err := process.Write(slices.Concat(due...))
		c.noteWritten(due, n)
		if err != nil {
			c.End(false, false)
			return err
		}
	}
}

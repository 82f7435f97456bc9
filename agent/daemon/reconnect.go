package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/discover"
)

// passage is what end needs of a connection besides its ends.
type passage struct {
	pid           int
	cgroup, netns string
	inode         uint32
	spared        bool
}

// end ends a connection and returns ReasonDue, or returns the reason for which it stays. It
// blocks for as long as the process's thread is stopped, some milliseconds, but not until the
// process has closed the connection; closing waits for that.
func (a *Adopter) end(ctx context.Context, d Connection, p passage, closing *sync.WaitGroup) Reason {
	pid, inode := p.pid, p.inode
	if len(a.ended) >= mostDone || len(a.done) >= mostDone {
		return ReasonBusy
	}
	// Before the process can connect again.
	if err := a.steer(d, p); err != nil {
		slog.Warn("cannot change the way of a connection", "to", d.Peer, "error", err)
		return ReasonFailed
	}
	// The closer takes its copy of the descriptor before the process can close its own.
	c := &closer{proc: a.proc, pid: pid, inode: inode}
	err := c.begin()
	if err == nil {
		e := ending{proc: a.proc, pid: pid, inode: inode, loop: c.loop}
		err = e.run()
	}
	var r *refusal
	switch {
	case errors.As(err, &r):
		c.drop()
		if !d.direct() {
			a.retake(d, p)
		}
		a.countReason(r.why)
		young := r.why == ReasonLoop && time.Since(a.since[d.Cookie]) < patience // a new connection's thread may not have entered its loop yet
		if r.why != ReasonBusy && !young {
			a.last[d.Cookie] = r.why
			slog.Warn("a connection keeps its way", "direct", d.direct(), "pid", pid, "to", d.Peer, "reason", string(r.why), "error", r.err)
		}
		return r.why
	case err != nil: // the process has received the end, so there is no way back
		slog.Error("a message may be lost on an adopted connection", "pid", pid, "to", d.Peer, "error", err)
	}
	a.done[d.Cookie] = true
	if !d.direct() {
		a.mu.Lock()
		a.held[d.Peer] = true
		a.mu.Unlock()
	}
	closing.Go(func() {
		err := c.await(ctx)
		if !d.direct() {
			err = a.letOut(ctx, d, p, err)
		}
		if err != nil {
			a.countReason(ReasonUnclosed)
			slog.Warn("a connection has not ended after the end of stream", "pid", pid, "to", d.Peer, "error", err)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if d.direct() {
			a.adopted++
		} else {
			a.left++
		}
	})
	slog.Info("a connection is being re-established", "through_proxy", d.direct(), "pid", pid, "to", d.Peer)
	return ReasonDue
}

// steer sets where the process's next connect goes. One that is to bypass the proxy has to wait
// until the connection through it has ended at its other end, so that no message overtakes another.
func (a *Adopter) steer(d Connection, p passage) error {
	switch {
	case !d.direct():
		return a.opts.Proxy.Hold(p.cgroup, d.Peer, 2*(holdFor+closeFor)) // the end is known before, unless this agent is killed
	case p.spared:
		return a.opts.Proxy.Take(p.cgroup, d.Peer)
	}
	return nil
}

// retake has connects to where a connection goes take its way, through the proxy.
func (a *Adopter) retake(d Connection, p passage) {
	if err := a.opts.Proxy.Take(p.cgroup, d.Peer); err != nil {
		slog.Warn("cannot change the way of a connection", "to", d.Peer, "error", err)
	}
}

// letOut has connects go direct once a connection through the proxy has ended at its other end too,
// and through the proxy as before where that is not known. err says whether the process has closed
// it.
func (a *Adopter) letOut(ctx context.Context, d Connection, p passage, err error) error {
	if err == nil {
		err = a.awaitEnd(ctx, d, p)
	}
	if err == nil {
		err = a.opts.Proxy.Hold(p.cgroup, d.Peer, 0)
	}
	if err != nil {
		a.retake(d, p)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.held, d.Peer)
	return err
}

// awaitEnd waits until the proxy has closed its end of a connection that the process has closed,
// which it does when the other host's proxy has, and that when its process has.
func (a *Adopter) awaitEnd(ctx context.Context, d Connection, p passage) error {
	proxys := discover.Ends{Local: d.Via, Peer: d.Local}
	for end := time.Now().Add(holdFor); ; {
		in, err := a.sockets(p.netns)
		if err != nil {
			return err
		}
		if s, open := in[proxys]; !open || s.Inode == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("still open at the other end after %v", holdFor)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// isHeld reports whether connects to a destination are held.
func (a *Adopter) isHeld(to netip.AddrPort) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[to]
}

// A closer follows a connection whose end was sent to its process until the process has closed
// it. It has a descriptor of the socket of its own, by which it makes sure that the peer sees
// the end.
type closer struct {
	proc   *discover.ProcFS
	pid    int
	inode  uint32
	loop   loop // how the process waits for the socket
	socket int  // this process's descriptor; -1: none
}

// begin finds the connection's event loop and takes a copy of its descriptor (pidfd_getfd,
// which needs CAP_SYS_PTRACE). Errors are refusals.
func (c *closer) begin() (err error) {
	c.socket = -1
	if c.loop, err = findLoop(c.proc, c.pid, c.inode); err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(c.pid, 0)
	if err != nil {
		return refusef(ReasonBusy, "process %d: %w", c.pid, err)
	}
	defer unix.Close(pidfd)
	if c.socket, err = unix.PidfdGetfd(pidfd, c.loop.socket, 0); err != nil {
		return refusef(denied(err), "its file %d: %w", c.loop.socket, err)
	}
	return nil
}

func (c *closer) drop() {
	if c.socket >= 0 {
		unix.Close(c.socket)
	}
}

// await waits until the process has closed its descriptor, and then shuts the socket down in
// both directions. Children of the process may have inherited it; as long as they hold it, the
// peer would not see the end, and would accept no other connection of the same node.
func (c *closer) await(ctx context.Context) error {
	defer c.drop()
	open, name := fmt.Sprintf("socket:[%d]", c.inode), fmt.Sprintf("%d/fd/%d", c.pid, c.loop.socket)
	for end := time.Now().Add(closeFor); ; {
		// The descriptor is closed, or is another file by now.
		if link, err := c.proc.ReadLink(name); err != nil || link != open {
			unix.Shutdown(c.socket, unix.SHUT_RDWR) // fails if the peer has closed it already
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not closed within %v", closeFor)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

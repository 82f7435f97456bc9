package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
)

// Serve accepts connections of the job until ctx ends or the listener is closed, which it is on
// return. Each is carried in a goroutine of its own, and may outlast Serve.
func (p *Proxy) Serve(ctx context.Context, l Listener) error {
	if p.opts.Jobs != nil {
		p.opts.Jobs.Names(l.Scope, l.Job)
	}
	defer p.entry.serve(l.Scope.Cgroup)()
	serve := p.admitted(l.Scope.Cgroup, func(c *net.TCPConn) error {
		destination, err := l.Destination(c)
		if err != nil {
			return reason.Errorf(reason.NoDestination, "connection from %s: %w", c.RemoteAddr(), err)
		}
		// Carrying it would connect to the same listener again, and so on.
		if destination == addrPort(c.LocalAddr()) {
			return reason.Errorf(reason.Loop, "connection from %s was made to the proxy itself", c.RemoteAddr())
		}
		return p.outbound(c, l, destination)
	})
	return p.accept(ctx, l.Listener, func(c *net.TCPConn) func() error { return func() error { return serve(c) } })
}

// ServeLinks accepts links of other proxies likewise. netns is the inode of the listener's network
// namespace, 0 for this process's own.
func (p *Proxy) ServeLinks(ctx context.Context, l net.Listener, netns uint64) error {
	return p.accept(ctx, l, func(c *net.TCPConn) func() error { return p.greet(c, netns) })
}

// admitted wraps serve so that it is called only with a free slot of a cgroup's share, which it
// holds until it returns.
func (p *Proxy) admitted(cgroup uint64, serve func(*net.TCPConn) error) func(*net.TCPConn) error {
	return func(c *net.TCPConn) error {
		if err := p.enter(c.RemoteAddr()); err != nil {
			return err
		}
		defer p.entry.leave()
		if err := p.claim(cgroup); err != nil {
			return reason.Wrap(err, "connection from %s", c.RemoteAddr())
		}
		defer p.entry.disclaim(cgroup)
		return serve(c)
	}
}

// claim has a slot count as one of a cgroup's. The caller ends that by entry.disclaim.
func (p *Proxy) claim(cgroup uint64) error {
	if !p.entry.claim(cgroup) {
		return reason.Errorf(reason.TooMany, "cgroup %d has its share of the %d connections that are carried at a time", cgroup, p.entry.most)
	}
	return nil
}

// enter takes a slot, which the caller has to release by entry.leave.
func (p *Proxy) enter(from net.Addr) error {
	if !p.entry.enter() {
		return reason.Errorf(reason.TooMany, "connection from %s: %d are open already", from, p.entry.most)
	}
	return nil
}

// acceptFor is how long a listener's loop waits for a connection before it beats again.
const acceptFor = time.Second

// accept calls take for each connection, in the order in which they come, and what that returns in
// a goroutine of its own. It survives a lack of descriptors, by shedding the connections that it
// cannot accept.
func (p *Proxy) accept(ctx context.Context, l net.Listener, take func(*net.TCPConn) (serve func() error)) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	const shortest, longest = 5 * time.Millisecond, time.Second
	beat := p.opts.Health.Add("taking connections at "+l.Addr().String(), health.Within)
	defer beat.End()
	bounded, _ := l.(interface{ SetDeadline(time.Time) error })
	for wait := shortest; ; {
		beat.Beat()
		if bounded != nil {
			bounded.SetDeadline(time.Now().Add(acceptFor)) // a listener that was closed says so itself
		} else {
			beat.Rest()
		}
		conn, err := l.Accept()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err == nil:
			// The pause is only for errors in a row.
			wait = shortest
			p.serveConn(conn, take)
			continue
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case reason.IsNoDescriptors(err):
			// The connection stays in the kernel's queue after a failed accept, and would
			// fail the next one too.
			p.conns.failed(reason.NoDescriptors)
			p.entry.ranShort()
			p.entry.shed(l)
		default:
			p.conns.failed(reason.Accept)
		}
		p.log.Warn("cannot accept connections; retrying", "listener", l.Addr(), "after", wait, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, longest)
	}
}

// patientDialer returns a dialer whose connections have no keepalive. libzmq sets none, so a
// job outlives a cut of any length while its connections are idle; Go's default would end the
// proxies' connections between cut hosts after 150 s.
func patientDialer(mark int, log *slog.Logger) *net.Dialer {
	d := dial.MarkingDialer(mark, log)
	d.KeepAlive = -1
	return d
}

// serveConn serves a connection in a goroutine of its own, which counts in work, and closes
// it afterwards. It turns keepalive off, as [patientDialer] does.
func (p *Proxy) serveConn(conn net.Conn, take func(*net.TCPConn) (serve func() error)) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		p.fail(reason.Errorf(reason.Accept, "a listener gave a %T, only TCP can be served", conn))
		conn.Close()
		return
	}
	tcp.SetKeepAlive(false)
	serve := take(tcp)
	p.work.Go(func() {
		if err := serve(); err != nil {
			p.fail(err)
			if reason.Of(err) == reason.NoDescriptors {
				p.entry.ranShort()
			}
			sock.Reset(tcp)
		}
	})
}

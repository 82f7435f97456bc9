package proxy

import (
	"errors"
	"net"
	"time"
)

// restFor is how long nothing must have come on a connection, in either
// direction, before it counts as at rest.
const restFor = 200 * time.Millisecond

var errStopped = errors.New("the proxy was stopped")

// Drain ends all connections, after the listeners were closed: those at rest,
// with no message under way and nothing unacknowledged, in an orderly way, the
// others when they come to rest, or by a reset when Options.Grace is over. It
// returns when all have ended, and the proxy cannot be used any more.
func (p *Proxy) Drain() {
	p.conns.stopping.Store(true)
	ended := make(chan struct{})
	go func() {
		p.work.Wait()
		close(ended)
	}()
	grace := time.NewTimer(p.opts.Grace)
	defer grace.Stop()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	farewell := map[uint64]bool{}
	for {
		select {
		case <-ended:
			p.kill(errStopped)
			return
		case <-grace.C:
			p.kill(errStopped)
			<-ended
			return
		case <-look.C:
			for _, c := range p.conns.all() {
				if !farewell[c.id] && c.atRest() {
					farewell[c.id] = true
					c.farewell()
				}
			}
		}
	}
}

// atRest reports whether the connection can be ended without cutting off a
// message, as far as that can be seen from here.
func (c *connection) atRest() bool {
	if c.pipe.ToFar.Counts().InMessage || c.pipe.ToJob.Counts().InMessage {
		return false
	}
	for _, half := range []net.Conn{c.pipe.Job, c.pipe.Far} {
		if s := kernelState(half); s.quiet < restFor || s.unsent {
			return false
		}
	}
	return true
}

// farewell tells both ends that nothing more comes. When they answer in kind
// the connection has ended.
func (c *connection) farewell() {
	for _, half := range []net.Conn{c.pipe.Job, c.pipe.Far} {
		if h, ok := half.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
		}
	}
}

package proxy

import (
	"context"
	"errors"
	"net"
	"time"
)

// restFor is how long nothing must have come on a connection, in either
// direction, before it counts as at rest. pauseFor does for one on which only
// the client speaks, as PS-lite's nodes do: answers go over another connection.
const (
	restFor  = 200 * time.Millisecond
	pauseFor = 10 * time.Millisecond
)

var errStopped = errors.New("the proxy was stopped")

// Drain ends all connections, after the listeners were closed: those at rest,
// with no message under way and nothing unacknowledged, in an orderly way, the
// others when they come to rest, or by a reset when Options.Grace is over. A
// client that was told the end has its last bytes carried. Links between sites
// end after them, so that what is held for a move is released until then. Drain
// returns when all have ended, and the proxy cannot be used any more.
func (p *Proxy) Drain() {
	p.conns.stopping.Store(true)
	p.flush()
	ended := make(chan struct{})
	go func() {
		p.work.Wait()
		p.endSites()
		p.sites.Wait()
		close(ended)
	}()
	grace := time.NewTimer(p.opts.Grace)
	defer grace.Stop()
	look := time.NewTicker(5 * time.Millisecond)
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
				if farewell[c.id] {
					continue
				}
				switch client := c.oneWay(); {
				case client != nil && c.silentFor(pauseFor):
					farewell[c.id] = true
					closeWrite(client)
				case c.silentFor(restFor):
					farewell[c.id] = true
					closeWrite(c.pipe.Job)
					closeWrite(c.pipe.Far)
				}
			}
		}
	}
}

// flush sends what waits of the job's pushes.
func (p *Proxy) flush() {
	if p.opts.Values == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.opts.Grace)
	defer cancel()
	if err := p.opts.Values.Flush(ctx); err != nil {
		p.log.Warn("what waited of pushes is lost at the end", "error", err)
	}
}

// silentFor reports whether the connection has been silent for so long, and can
// be ended without cutting off a message, as far as that can be seen from here.
func (c *connection) silentFor(least time.Duration) bool {
	if c.pipe.ToFar.Counts().InMessage || c.pipe.ToJob.Counts().InMessage {
		return false
	}
	for _, half := range []net.Conn{c.pipe.Job, c.pipe.Far} {
		if s := kernelState(half); s.quiet < least || s.unsent || s.unread {
			return false
		}
	}
	return true
}

// What a ZMTP peer says before messages: a greeting of 64 bytes and READY.
const (
	leastHandshake = 64
	mostHandshake  = 512
)

// oneWay returns the half that leads to the client, where only the client
// sends messages. Told that nothing more comes, it closes, and its last bytes
// and its end go the whole way to the server.
func (c *connection) oneWay() net.Conn {
	job := kernelState(c.pipe.Job)
	client, said, messages := c.pipe.Job, job.sent, c.pipe.ToJob.Counts().Messages
	if c.kind == kindAccepted {
		client, said, messages = c.pipe.Far, job.received, c.pipe.ToFar.Counts().Messages
	}
	if messages > 0 || said < leastHandshake || said > mostHandshake {
		return nil
	}
	return client
}

// closeWrite tells an end that nothing more comes. When it answers in kind the
// connection has ended.
func closeWrite(half net.Conn) {
	if h, ok := half.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
	}
}

package proxy

import (
	"context"
	"errors"
	"net"
	"time"
)

// The end of a proxy, in the order of PrepareEnd, Drain and Run:
//
//  1. hosts that do not answer are waited for, and it is decided whether there is an heir;
//  2. listeners are closed, by the end of Run's context, and connections that are still being
//     set up are reset;
//  3. sessions are not kept any more, and what codecs hold back of pushes is sent;
//  4. summing of pushes ends, and with it what waits for answers;
//  5. connections that can change links are brought to stand, and handed over;
//  6. messages for this host's processes are held on the others, so that they fall silent;
//  7. clients are sent the end when all are silent, and what was held is released;
//  8. links between sites end, then lanes; what was not sent of pushes goes to a file;
//  9. jobs write what is unfinished.
//
// restFor is how long a connection must be silent in both directions to count as at rest.
// Where it is not known whether it ever comes to rest, pauseFor suffices. holdFor is how long
// messages are held at most. Tests set others.
const (
	restFor  = 200 * time.Millisecond
	pauseFor = 10 * time.Millisecond
	holdFor  = 2 * time.Second
)

// errStopped is the cause of life's end.
var errStopped = errors.New("the proxy was stopped")

// Drain ends all connections; the listeners must be closed. It blocks until all have ended,
// and the proxy cannot be used any more.
//
// A connection that is still being set up is reset: nothing of it was carried, and its process
// connects again. If it were set up now, as after the wait for a proxy that is away as well, its
// client could begin to speak when no messages are held any more, and might never pause.
//
// Connections that can go on in the next proxy are handed over. Of the others those at rest
// end in order: with no message in flight and nothing unacknowledged. The rest end when they
// come to rest, or by a reset when Options.Grace is over. The last bytes of a client that has
// received the end are still carried. Meanwhile messages for this host's processes are held,
// so that nobody has anything to say: see [drain.hold]. Links between sites end last, so that
// requests held for a move can still be released. docs/design/data-path.md, "Handing over", has
// what may be lost.
func (p *Proxy) Drain() {
	began := time.Now()
	defer p.peers.awaitSaved(saveWait)
	p.conns.stopping.Store(true)
	p.endSetup()
	p.log.Info("shutting down", "connections", p.conns.active(), "grace", p.opts.Grace)
	// From here on no new connection is kept or summed, and what waits of pushes goes to the
	// servers while connections still carry it. Only then are connections brought to stand.
	p.kept.stop()
	p.flushPushes()
	p.endGathering()
	p.passes.stop()
	ended := make(chan struct{})
	go func() {
		p.work.Wait()
		// Letters may release requests for as long as there are connections that wait for
		// them.
		p.endSites()
		p.sites.Wait()
		close(ended)
	}()
	// Whoever ended the proxy waits for as long as the grace, whatever the pushes took.
	// The time in which hosts were waited for counts.
	left := max(p.opts.Grace-time.Since(p.passes.began), p.opts.Grace/4)
	grace := time.NewTimer(left)
	defer grace.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	now := time.Now()
	d := p.newDrain(now, left)
	d.hold(p.handOver(true), now)
	for {
		select {
		case <-ended:
			d.release()
			p.kill(errStopped)
			p.log.Info("all connections closed", "seconds", time.Since(began).Seconds())
			return
		case <-grace.C:
			d.release()
			p.log.Warn("grace period expired; resetting the remaining connections", "connections", p.conns.active())
			p.kill(errStopped)
			<-ended
			return
		case now := <-look.C:
			d.advance(p.handOver(false), now)
		}
	}
}

// handOver has connections handed over to the next proxy as soon as they stand between two
// messages, and returns those that cannot be. The first call counts why.
func (p *Proxy) handOver(count bool) (others []*connection) {
	for _, c := range p.conns.openConnections() {
		// Asked again at each look: a connection may become able to pass later, for instance
		// when its streams have begun.
		if passes, why := p.passes.ends(c); !passes {
			others = append(others, c)
			if count {
				p.passes.drains(why)
			}
		}
	}
	return others
}

// drain is the orderly end of those connections that are not handed over.
type drain struct {
	rest     time.Duration        // how long all must be silent
	pause    time.Duration        // how long one must be silent after late
	farewell map[*connection]bool // connections whose process was sent the end; true: only the client sends on it
	held     map[*connection]bool // connections whose messages are held
	late     time.Time            // when holding ends in any case
	last     time.Time            // from when on clients that do not pause are sent the end, too
}

// newDrain returns a drain that begins now. What has not ended when left is over is reset, so
// all of its stages come before.
func (p *Proxy) newDrain(now time.Time, left time.Duration) *drain {
	return &drain{
		rest: p.restFor, pause: p.pauseFor, farewell: map[*connection]bool{}, held: map[*connection]bool{},
		late: now.Add(min(p.holdFor, left/2)), last: now.Add(left - left/8),
	}
}

// advance does what is due now, for all connections that are not handed over.
func (d *drain) advance(all []*connection, now time.Time) {
	d.hold(all, now)
	d.sendEnds(all, now)
}

// hold keeps what comes for this host's processes from them. A process that waits for a held
// answer does not send, nor does one that waits for that process; so the whole job falls
// silent between two messages. That matters because a client which sends while it receives
// the end of its connection may lose the message: libzmq writes 8 KiB of a message at a time,
// and drops the rest.
//
// It looks for connections to hold until late: of one in its handshake it is not known yet that
// only the client speaks, and messages that are not held can keep the whole job busy.
func (d *drain) hold(all []*connection, now time.Time) {
	if now.After(d.late) {
		return
	}
	for _, c := range all {
		if c.kind == kindAccepted && !d.held[c] && c.oneWay() != nil {
			c.pipe.Hold()
			d.held[c] = true
		}
	}
}

// release gives the processes what was held.
func (d *drain) release() {
	for c := range d.held {
		c.pipe.Release()
	}
	clear(d.held)
}

// requiredSilence returns for how long a client must be silent to be sent the end. alone means
// that others need not be silent, too.
//
// A client that never pauses is sent the end at last between two messages, as far as they can
// be seen. It may lose the one that it begins just then; by the reset that follows otherwise it
// would lose all that is in flight.
func (d *drain) requiredSilence(now time.Time) (least time.Duration, alone bool) {
	switch {
	case now.After(d.last):
		return 0, true
	case now.After(d.late):
		return d.pause, true
	}
	return d.rest, false
}

// sendEnds sends clients the end of their connections: to those on whose connections only the
// client speaks, all at once when none of them speaks any more, or one by one when that takes
// too long. Other connections end each for itself, when silent. Held messages are released
// when all connections have ended.
func (d *drain) sendEnds(all []*connection, now time.Time) {
	silent, gone := true, true
	var clients []*connection
	for _, c := range all {
		told, ok := d.farewell[c]
		switch {
		case ok:
			gone = gone && (!told || c.clientEnded())
		case c.oneWay() != nil:
			silent, gone = silent && c.silentFor(d.rest), false
			clients = append(clients, c)
		case c.silentFor(d.rest):
			d.farewell[c] = false
			c.pipe.EndJob()
			closeWrite(c.pipe.Far)
		}
	}
	// While one client still speaks, none is told: it could wait for an answer that another
	// would send.
	least, alone := d.requiredSilence(now)
	for _, c := range clients {
		if half := c.oneWay(); half != nil && (silent || alone && c.silentFor(least)) {
			d.farewell[c] = true
			if half == c.pipe.Job {
				c.pipe.EndJob()
			} else {
				closeWrite(half)
			}
		}
	}
	if gone || alone {
		d.release()
	}
}

// clientEnded reports whether the client has ended its stream.
func (c *connection) clientEnded() bool {
	if c.kind == kindAccepted {
		return c.pipe.FarEnded()
	}
	return c.pipe.JobEnded()
}

// flushPushes sends what codecs hold back of the job's pushes, and blocks until it has gone
// or Grace is over.
func (p *Proxy) flushPushes() {
	if p.opts.Values == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.opts.Grace)
	defer cancel()
	if err := p.opts.Values.Flush(ctx); err != nil {
		p.log.Warn("residuals are lost at shutdown", "error", err)
	}
	if left := p.opts.Values.AwaitDrained(ctx); left > 0 {
		p.log.Warn("some residuals are lost: they are not in --state-dir, and their workers push no more", "values", left)
	}
}

// silentFor reports whether the connection has been silent for so long and can be ended
// without cutting off a message, as far as that can be seen from here: neither the relay nor
// the kernel has a part of one.
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

// A ZMTP peer that sends no messages has sent a greeting of 64 bytes and READY, and nothing
// else.
const (
	leastHandshake = 64
	mostHandshake  = 512
)

// oneWay returns the half that leads to the client where only the client sends messages, and
// nil otherwise. PS-lite's nodes do so: answers take another connection. When the client
// receives the end it closes, and its last bytes and its own end travel the whole way to the
// server.
func (c *connection) oneWay() net.Conn {
	job := kernelState(c.pipe.Job)
	client, said, messages := c.pipe.Job, job.sent, c.pipe.ToJob.Counts().Messages
	if c.kind == kindAccepted {
		client, said, messages = c.pipe.Far, job.received, c.pipe.ToFar.Counts().Messages
	}
	// More than a handshake came from the server's side, or not even one: both ends speak, or
	// it is unknown whether they do.
	if messages > 0 || said < leastHandshake || said > mostHandshake {
		return nil
	}
	return client
}

// closeWrite sends an end of the stream. When the peer answers with its own, the connection
// has ended.
func closeWrite(half net.Conn) {
	if h, ok := half.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
	}
}

package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// resumeEvery is the pause between attempts to resume a connection.
const resumeEvery = 50 * time.Millisecond

// errHalted ends the wait for a link, since this proxy is about to end.
var errHalted = reason.Errorf(reason.Stopping, "cannot resume a connection after a broken link: this proxy is shutting down")

// goOn resumes a session whose link broke, and returns the connection that carries it on. It
// blocks for up to takenUpWithin.
func (s *session) goOn(broken error) (*connection, error) {
	held, ok := s.detach()
	if !ok || len(held) == 0 {
		if s.page.Meta().Dialed {
			// The process here is about to connect again. Without this word the other end
			// would wait, and its process could refuse the new connection while the old one
			// exists.
			s.forget()
		}
		return nil, reason.Errorf(reason.ResetByFarSide, "%w, of a connection that is not kept", broken)
	}
	return s.await(held)
}

// await resumes the session from where the kernel says that it stands, for as long as one of
// the lanes held is open: that proves that somebody holds the other end. A session of a
// previous proxy has no lanes; then only time counts.
func (s *session) await(held []*lane) (*connection, error) {
	// From here on the position is fixed; acknowledgements that are still read do not change
	// it.
	mine, err := s.standing()
	if err != nil {
		if s.page.Meta().Dialed {
			s.forget()
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.k.p.life, takenUpWithin)
	defer cancel()
	// gone is closed when the last lane has ended: then nobody holds the other end. Without
	// lanes it stays open.
	gone := make(chan struct{})
	if len(held) > 0 {
		var waiting sync.WaitGroup
		defer waiting.Wait()
		defer cancel()
		waiting.Go(func() {
			for _, n := range held {
				select {
				case <-n.dead:
				case <-ctx.Done():
					return
				}
			}
			close(gone)
		})
	}
	if s.page.Meta().Dialed {
		return s.dialAgain(ctx, mine, gone)
	}
	return s.takeAgain(ctx, mine, gone)
}

// standing returns the session's position, as it is sent to the other proxy. From then on
// acknowledgements no longer move it: what both ends derive from the positions has to hold.
func (s *session) standing() (o keep.Offer, err error) {
	m := s.page.Meta()
	o = keep.Offer{Kind: keep.Resume, Session: m.Session}
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		// A session of a previous proxy has no link yet, and nothing moves its position.
		l.window.Stand()
	}
	if o.Position, err = keep.ReadPosition(s.job, m.SYN); err == nil {
		o.Message, err = s.page.Standing(o.Position.Consumed)
	}
	if err != nil {
		return o, reason.Errorf(reason.NotKept, "taking a connection up again: %w", err)
	}
	return o, nil
}

// hello returns the hello of the session's next link. Codecs are offered only if the position
// is between two messages: a codec has to begin with one.
func (s *session) hello(o keep.Offer) *link.Hello {
	p, m := s.k.p, s.page.Meta()
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: m.Client, Destination: m.Destination}
	// In the middle of a message the rest passes as it is, over a link without codecs.
	if o.Message {
		h.Offers = p.codecOffers()
	}
	h.Offers = append(h.Offers, link.Offer{Codec: keep.Name, Data: o.Append(nil)})
	return h
}

// mesh returns the mesh port at the session's destination.
func (s *session) mesh() string {
	return net.JoinHostPort(s.page.Meta().Destination.Addr().String(), strconv.Itoa(int(s.k.p.opts.MeshPort)))
}

// dialAgain dials until the other proxy, or its successor, goes on with the session.
func (s *session) dialAgain(ctx context.Context, mine keep.Offer, gone <-chan struct{}) (*connection, error) {
	p := s.k.p
	for {
		h := s.hello(mine)
		far, answer, err := p.links.Dial(ctx, s.mesh(), h)
		if err == nil {
			var c *connection
			if c, err = s.follow(far, h.ID, answer, mine); err == nil {
				return c, nil
			}
			sock.Reset(far)
		}
		if p.life.Err() != nil {
			return nil, reason.Errorf(reason.Stopped, "taking a connection up again: %w", context.Cause(p.life))
		}
		// A proxy has answered, and does not have the connection.
		if refused(err) {
			return nil, reason.Errorf(reason.NotKept, "taking a connection up again: %w", err)
		}
		select {
		case <-s.k.halt:
			return nil, errHalted
		case <-gone:
			return nil, reason.Errorf(reason.NotKept, "resuming a connection: the other end is no longer held: %w", err)
		case <-ctx.Done():
			s.forget()
			return nil, reason.Errorf(reason.NotKept, "taking a connection up again, for %v: %w", takenUpWithin, err)
		case <-time.After(resumeEvery):
		}
	}
}

// refused reports whether an error means that no proxy there will go on, now or later. A
// proxy that was killed, is about to end or has just begun may be followed by one that does;
// a TLS failure or an unknown session is final.
func refused(err error) bool {
	if !reason.Has(err) || errors.Is(err, link.ErrNoProxy) {
		return false
	}
	switch reason.Of(err) {
	case reason.TLS:
		// A handshake that broke off says nothing of certificates: a peer that rejects
		// one sends an alert.
		return !reason.IsReset(err) && !errors.Is(err, io.EOF)
	case reason.HelloTimeout: // in the handshake: it hangs, or is cut off
		return false
	case reason.Starting, reason.Stopping, reason.ResetByFarSide, reason.ForeignPort, reason.Unreachable, reason.NoDescriptors:
		return false
	}
	return true
}

// forget tells the other proxy that it need not wait for the session. The process is about to
// connect again, and the process at the other end may refuse a node whose previous connection
// still exists.
func (s *session) forget() {
	ctx, cancel := context.WithTimeout(s.k.p.life, s.k.p.opts.HelloTimeout)
	defer cancel()
	h := s.hello(keep.Offer{Kind: keep.Forget, Session: s.page.Meta().Session})
	far, _, err := s.k.p.links.Dial(ctx, s.mesh(), h)
	if err == nil {
		far.Close()
	}
}

// follow sets up the session over a new link, at the dialer's end. [keep.Take] decides from
// the two positions what each end does; both ends call it with the same arguments, exchanged,
// so they agree.
func (s *session) follow(far net.Conn, id uint64, answer *link.Answer, mine keep.Offer) (*connection, error) {
	theirs, ok := offered(answer.Accepted)
	if !ok || theirs.Session != mine.Session {
		return nil, reason.Errorf(reason.NotKept, "the other proxy does not know it")
	}
	// Both ends decide alike, so neither tells the other.
	taken, err := keep.Take(mine, theirs)
	if err != nil {
		return nil, reason.Errorf(reason.NotKept, "%w", err)
	}
	c := s.resumeOver(far, id, answer.Proven, answer.Instance)
	if taken.Codecs {
		p := s.k.p
		l := relay.Link{ID: id, Dialer: p.instance, Acceptor: answer.Proven, Dialed: true}
		if err := p.openLink(c, answer.Accepted, l); err != nil {
			return nil, err
		}
	}
	if err := s.attachAgain(c, mine, theirs, taken); err != nil {
		c.closeCodec()
		return nil, err
	}
	if taken.Codecs {
		s.k.p.observe(c)
	}
	return c, nil
}

// resumeOver returns the connection that carries the session over a new link.
func (s *session) resumeOver(far net.Conn, id uint64, peer, name relay.Instance) *connection {
	m := s.page.Meta()
	c := &connection{kind: kindAccepted, client: m.Client, destination: m.Destination, job: m.Job, origin: m.Origin, peer: peer, peerName: name, linkID: id, kept: s}
	if m.Dialed {
		c.kind = kindLink
	}
	c.pipe.Job, c.pipe.Far = s.job, far
	return c
}

// attachAgain attaches a connection that goes on from the agreed positions.
func (s *session) attachAgain(c *connection, mine, theirs keep.Offer, taken keep.Taken) error {
	return s.attach(c, mine.Position, &relay.Keeping{Begun: mine.Position.Consumed > 0, FarBegun: theirs.Position.Consumed > 0, Skip: taken.Skip})
}

// takeAgain waits for a link of the other proxy, or of its successor, at the accepting end.
func (s *session) takeAgain(ctx context.Context, mine keep.Offer, gone <-chan struct{}) (*connection, error) {
	for {
		select {
		case a := <-s.links:
			c, err := s.answer(a, mine)
			if err == nil {
				return c, nil
			}
			if reason.Of(err) == reason.NotKept {
				return nil, err
			}
			sock.Reset(a.far) // it dials again
		case <-s.k.halt:
			return nil, errHalted
		case <-gone:
			return nil, reason.Errorf(reason.NotKept, "waiting for the other proxy: the other end is no longer held")
		case <-ctx.Done():
			if s.k.p.life.Err() != nil {
				return nil, reason.Errorf(reason.Stopped, "waiting for the other proxy: %w", context.Cause(s.k.p.life))
			}
			return nil, reason.Errorf(reason.NotKept, "no connection from the other proxy within %v", takenUpWithin)
		}
	}
}

// answer answers a link over which the session is to go on. Where that cannot be, the
// process's connection is reset before the other proxy learns so: its process connects again
// at once, and must not find the old connection.
func (s *session) answer(a arrival, mine keep.Offer) (*connection, error) {
	theirs, _ := offered(a.hello.Offers)
	taken, err := keep.Take(mine, theirs)
	if theirs.Kind == keep.Forget {
		err = errors.New("the other proxy has given it up")
	}
	if err != nil {
		sock.Reset(s.job)
		err = reason.Errorf(reason.NotKept, "%w", err)
		s.k.p.refuse(a.far, err)
		return nil, err
	}
	p := s.k.p
	answer := link.Answer{Instance: p.instance}
	c := s.resumeOver(a.far, a.hello.ID, a.hello.Proven, a.hello.Instance)
	if taken.Codecs {
		answer.Accepted = p.accepted(a.hello.Offers)
		if err := p.openLink(c, matching(a.hello.Offers, answer.Accepted), relay.Link{ID: a.hello.ID, Dialer: a.hello.Proven, Acceptor: p.instance}); err != nil {
			return nil, err
		}
	}
	if err := s.attachAgain(c, mine, theirs, taken); err != nil {
		c.closeCodec()
		return nil, err
	}
	// The answer goes last. From here on the other end sends.
	answer.Accepted = append(answer.Accepted, link.Offer{Codec: keep.Name, Data: mine.Append(nil)})
	if err := link.Reply(a.far, &answer); err != nil {
		s.detach()
		c.closeCodec()
		return nil, err
	}
	return c, nil
}

// resume hands an arrived link to the session that it resumes. settled is read before the
// session is looked for: were it read after, a session that is named in between would be
// refused for good.
func (p *Proxy) resume(a arrival, o keep.Offer) error {
	k := &p.kept
	settled := k.settled.Load() // before it is looked for
	k.mu.Lock()
	s := k.accepted[o.Session]
	k.mu.Unlock()
	why := reason.NotKept
	if !settled && o.Kind == keep.Resume {
		why = reason.Starting
	}
	refuse := func(err error) error {
		p.refuse(a.far, err)
		return reason.Wrap(err, "link from %s", a.source())
	}
	if s == nil {
		return refuse(reason.Errorf(why, "the connection is not held here"))
	}
	m := s.page.Meta()
	if err := isSame(a, m.Client, m.Destination, m.Far); err != nil {
		return refuse(err)
	}
	if !s.give(a) {
		return refuse(reason.Errorf(reason.NotKept, "the connection has ended"))
	}
	return nil
}

// give has the session go on over a link, and breaks the link that it has, which the other
// end has given up. A link that came before and was not used yet is dropped. It returns false
// where the session has ended.
func (s *session) give(a arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	select {
	// The other end dials again before this one has used its first link, which it has given
	// up then.
	case before := <-s.links:
		sock.Reset(before.far)
	default:
	}
	s.links <- a
	if s.now != nil {
		s.now.pipe.Break()
	}
	return true
}

package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Pauses between attempts to go on over another link: passAgain, doubled each time up to
// passSeldom.
const (
	passAgain   = 5 * time.Millisecond
	passSeldom  = 80 * time.Millisecond
	passTimeout = time.Second // for telling a proxy that it need not wait
)

// hello returns the hello of a link for a transit. It offers codecs only if the connection is
// to go on.
func (s *passes) hello(t *transit, kind byte) *link.Hello {
	h := &link.Hello{Instance: s.p.instance, ID: s.p.newLinkID(), Client: t.Client, Destination: t.Destination}
	// Forget needs no codec.
	if kind == keep.Resume {
		h.Offers = s.p.offersOf(t.Origin, t.Job)
	}
	h.Offers = append(h.Offers, passOffer(keep.Pass{Kind: kind, Session: t.Session, Ready: t.Ready}))
	return h
}

// mesh returns the mesh port at the transit's destination.
func (s *passes) mesh(t *transit) string {
	return net.JoinHostPort(t.Destination.Addr().String(), strconv.Itoa(int(s.p.opts.MeshPort)))
}

// dial dials until the other proxy, or its successor, goes on with the connection, or ctx
// ends. A refused TCP connection means that no proxy runs there; after Until nobody holds the
// connection any more. A host that does not answer may be cut off for a moment, and is dialed
// on.
func (s *passes) dial(ctx context.Context, t *transit) (*connection, error) {
	for wait := passAgain; ; wait = min(2*wait, passSeldom) {
		select {
		case <-s.halt:
			return nil, errLeaves
		default:
		}
		h := s.hello(t, keep.Resume)
		far, answer, err := s.p.links.Dial(ctx, s.mesh(t), h)
		if err == nil {
			var c *connection
			if c, err = s.follow(t, far, h.ID, answer); err == nil {
				return c, nil
			}
			sock.Reset(far)
		}
		if s.p.life.Err() != nil {
			return nil, reason.Errorf(reason.Stopped, "going on over another link: %w", context.Cause(s.p.life))
		}
		// A host that refuses the TCP connection has no proxy at the moment. Until then the
		// next one may come.
		if refused(err) || errors.Is(err, unix.ECONNREFUSED) && keep.Monotonic() > t.Until {
			return nil, reason.Errorf(reason.NotKept, "going on over another link: %w", err)
		}
		select {
		case <-s.halt:
			return nil, errLeaves
		case <-ctx.Done():
			s.forget(t)
			return nil, reason.Errorf(reason.NotKept, "timeout while waiting for another link: %w", err)
		case <-time.After(wait):
		}
	}
}

// forget tells the other proxy that it need not wait. The process is about to connect again,
// and the process at the other end may refuse a node whose previous connection still exists.
func (s *passes) forget(t *transit) {
	ctx, cancel := context.WithTimeout(s.p.life, passTimeout)
	defer cancel()
	if far, _, err := s.p.links.Dial(ctx, s.mesh(t), s.hello(t, keep.Forget)); err == nil {
		far.Close()
	}
}

// follow sets up the connection over a new link, at the dialer's end.
func (s *passes) follow(t *transit, far net.Conn, id uint64, answer *link.Answer) (*connection, error) {
	if o, ok := passOffered(answer.Accepted); !ok || o.Session != t.Session {
		return nil, reason.Errorf(reason.NotKept, "the other proxy does not know the connection")
	}
	// The dialer's end asks for no proof who is at the other: it has dialed the address
	// itself.
	if t.line != nil {
		t.line.GoOn(nil)
	}
	c := t.connection(kindLink)
	s.attach(c, t, t.passing()) // before the codec is opened, which is told that the connection goes on
	if err := s.p.linked(c, far, answer, id); err != nil {
		return nil, err
	}
	s.p.observe(c)
	return c, nil
}

// connection returns a connection for the transit's next link.
func (t *transit) connection(k kind) *connection {
	c := &connection{kind: k, client: t.Client, destination: t.Destination, job: t.Job, origin: t.Origin, scope: t.scope()}
	if c.pipe.Job = t.job; t.line == nil {
		return c
	}
	if k == kindAccepted {
		c.pipe.Inbound = t.line
	} else {
		c.pipe.Outbound = t.line
	}
	return c
}

// passing returns the state with which the relay goes on.
func (t *transit) passing() *relay.Passing {
	return &relay.Passing{Begun: true, Left: t.Left, Ready: t.Ready, Judged: t.judged}
}

// await waits for a link of the other proxy, or of its successor, at the accepting end.
func (s *passes) await(ctx context.Context, t *transit) (*connection, error) {
	s.setWaits(t, true)
	defer s.setWaits(t, false)
	for {
		select {
		case a := <-t.links:
			c, err := s.answer(a, t)
			if err == nil || reason.Of(err) == reason.NotKept {
				return c, err
			}
			sock.Reset(a.far) // it dials again
		case <-s.halt:
			return nil, errLeaves
		case <-ctx.Done():
			if s.p.life.Err() != nil {
				return nil, reason.Errorf(reason.Stopped, "waiting for another link: %w", context.Cause(s.p.life))
			}
			return nil, reason.Errorf(reason.NotKept, "timeout while waiting for the other proxy")
		}
	}
}

// setWaits sets whether the transit takes links.
func (s *passes) setWaits(t *transit, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.waits = waits
}

// answer answers a link over which the connection is to go on. Where that cannot be, the
// process's connection is reset before the other proxy learns so: its process connects again
// at once, and must not find the old connection.
func (s *passes) answer(a arrival, t *transit) (*connection, error) {
	p := s.p
	o, _ := passOffered(a.hello.Offers)
	t.theirs = o.Ready
	var err error
	if o.Kind == keep.Forget {
		err = errors.New("the other proxy has given the connection up")
	} else {
		// The router must see the connection before the codec is opened.
		err = s.routes(a, t, o)
	}
	if err != nil {
		t.reset()
		err = reason.Errorf(reason.NotKept, "%w", err)
		p.refuse(a.far, err)
		return nil, err
	}
	// The process's connection is the same as before; only the link is new.
	c := t.connection(kindAccepted)
	c.peer, c.peerName, c.linkID, c.pipe.Far = a.hello.Proven, a.hello.Instance, a.hello.ID, a.far
	answer := link.Answer{Instance: p.instance, Accepted: p.accepted(a.hello.Offers)}
	if err := p.openLink(c, matching(a.hello.Offers, answer.Accepted), relay.Link{ID: a.hello.ID, Dialer: a.hello.Proven, Acceptor: p.instance}); err != nil {
		return nil, err
	}
	answer.Accepted = append(answer.Accepted, passOffer(keep.Pass{Kind: keep.Resume, Session: t.Session, Ready: t.Ready}))
	if err := link.Reply(a.far, &answer); err != nil {
		c.closeCodec()
		return nil, err
	}
	s.attach(c, t, t.passing())
	return c, nil
}

// routes tells the router that the other end of the connection is carried by another proxy
// now, or has it take the connection up.
func (s *passes) routes(a arrival, t *transit, o keep.Pass) (err error) {
	router, from := s.p.opts.Jobs, s.p.peer(a.far, a.hello)
	switch {
	case t.line != nil:
		t.line.GoOn(from)
	case router != nil:
		t.line, err = router.ResumeInbound(t.Destination, t.scope(), from, o.Ready)
	}
	return err
}

// closeCodec ends the codec of a connection that is not carried after all.
func (c *connection) closeCodec() {
	if c.pipe.Sender != nil {
		c.pipe.Sender.Close()
	}
	if c.pipe.Receiver != nil {
		c.pipe.Receiver.Close()
	}
}

// resume hands an arrived link to the connection that is to go on over it. Reason Starting
// has the other proxy dial again, any other one is final. settled is read before the
// connection is looked for: were it read after, a connection that is named in between would
// be refused.
func (s *passes) resume(a arrival, o keep.Pass) error {
	settled := s.heir.Load() == nil || s.p.kept.settled.Load() // before it is looked for
	s.mu.Lock()
	t := s.accepted[o.Session]
	waits := t != nil && t.waits
	s.mu.Unlock()
	var err error
	switch {
	// The agent has not named everything yet. The connection may be among what comes.
	case t == nil && o.Kind == keep.Resume && !settled:
		err = reason.Errorf(reason.Starting, "it is not known yet which connections were handed over")
	case t == nil:
		err = reason.Errorf(reason.NotKept, "the connection was not handed over to here")
	// This end has not noticed yet that the link ended.
	case !waits:
		err = reason.Errorf(reason.Starting, "the connection has a link")
	default:
		err = isSame(a, t.Client, t.Destination, t.Far)
	}
	if err == nil && s.give(t, a) {
		return nil
	}
	if err == nil {
		err = reason.Errorf(reason.Starting, "the connection is moving to another link")
	}
	s.p.refuse(a.far, err)
	if reason.Of(err) == reason.Starting {
		return nil // it dials again
	}
	return reason.Wrap(err, "link from %s", a.source())
}

// give gives a link to a connection that waits for one. It returns false where the connection
// has a link to look at, or does not wait any more: then nobody would look at this one, nor
// close it.
func (s *passes) give(t *transit, a arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted[t.Session] != t || !t.waits {
		return false
	}
	select {
	case t.links <- a:
		return true
	default:
		return false
	}
}

// isSame returns nil if a link may resume a connection between these addresses, whose links come
// from far. The id alone is secret, but a proxy that learns it must not take over another host's
// connection. The agent is not asked who listens at the destination: it was when the connection
// began, whose socket is at hand, and it may be away when a proxy has just followed another one.
func isSame(a arrival, client, destination netip.AddrPort, far netip.Addr) error {
	if client != a.hello.Client || destination != a.hello.Destination || far != a.source() {
		return reason.Errorf(reason.NotAllowed, "the connection is another one")
	}
	return nil
}

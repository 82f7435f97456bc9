package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Pauses between attempts to go on over another link, each twice the one before.
const (
	passAgain   = 5 * time.Millisecond
	passSeldom  = 80 * time.Millisecond
	passTimeout = time.Second // for a word to a proxy that it need not wait
)

func (s *passes) hello(t *transit, kind byte) *link.Hello {
	h := &link.Hello{Instance: s.p.instance, ID: s.p.newLinkID(), Client: t.Client, Destination: t.Destination}
	if kind == keep.Resume {
		h.Offers = s.p.offersOf(t.Origin, t.Job)
	}
	h.Offers = append(h.Offers, passOffer(keep.Pass{Kind: kind, Session: t.Session, Ready: t.Ready}))
	return h
}

func (s *passes) mesh(t *transit) string {
	return net.JoinHostPort(t.Destination.Addr().String(), strconv.Itoa(int(s.p.opts.MeshPort)))
}

// dial dials until the other proxy, or the one after it, goes on. A host on which none
// is, is dialed until nobody holds the connection there any more; one that does not
// answer may be cut off for a moment, and has taken the connection up since.
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
			relay.Reset(far)
		}
		if s.p.life.Err() != nil {
			return nil, reason.Errorf(reason.Stopped, "going on over another link: %w", context.Cause(s.p.life))
		}
		if refused(err) || errors.Is(err, unix.ECONNREFUSED) && keep.Monotonic() > t.Until {
			return nil, reason.Errorf(reason.NotKept, "going on over another link: %w", err)
		}
		select {
		case <-s.halt:
			return nil, errLeaves
		case <-ctx.Done():
			s.forget(t)
			return nil, reason.Errorf(reason.NotKept, "going on over another link: none in time: %w", err)
		case <-time.After(wait):
		}
	}
}

// forget tells the other proxy that it need not wait: the process is about to connect
// again, which a process at the other end may refuse from a node whose connection is
// still there.
func (s *passes) forget(t *transit) {
	ctx, cancel := context.WithTimeout(s.p.life, passTimeout)
	defer cancel()
	if far, _, err := s.p.links.Dial(ctx, s.mesh(t), s.hello(t, keep.Forget)); err == nil {
		far.Close()
	}
}

// follow makes what carries a connection on over a new link, at the dialer's end.
func (s *passes) follow(t *transit, far net.Conn, id uint64, answer *link.Answer) (*connection, error) {
	if o, ok := passOffered(answer.Accepted); !ok || o.Session != t.Session {
		return nil, reason.Errorf(reason.NotKept, "the other proxy says nothing of the connection")
	}
	if r, ok := t.job.(routed); ok {
		r.GoOn(nil)
	}
	c := t.connection(kindLink)
	if err := s.p.linked(c, far, answer, id); err != nil {
		return nil, err
	}
	s.attach(c, t, t.passing())
	s.p.observe(c)
	return c, nil
}

func (t *transit) connection(k kind) *connection {
	c := &connection{kind: k, client: t.Client, destination: t.Destination, job: t.Job, origin: t.Origin, scope: t.scope()}
	c.pipe.Job = t.job
	return c
}

// passing is how the connection goes on from where it stands.
func (t *transit) passing() *relay.Passing {
	return &relay.Passing{Begun: true, Left: t.Left, Ready: t.Ready}
}

// await waits for a link of the other proxy, or of the one after it.
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
			relay.Reset(a.far) // it dials again
		case <-s.halt:
			return nil, errLeaves
		case <-ctx.Done():
			if s.p.life.Err() != nil {
				return nil, reason.Errorf(reason.Stopped, "waiting for another link: %w", context.Cause(s.p.life))
			}
			return nil, reason.Errorf(reason.NotKept, "the other proxy has not come in time")
		}
	}
}

func (s *passes) setWaits(t *transit, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.waits = waits
}

// answer answers a link with which a connection is to go on. The process's connection
// is reset before the other proxy learns that it cannot resume.
func (s *passes) answer(a arrival, t *transit) (*connection, error) {
	p := s.p
	o, _ := passOffered(a.hello.Offers)
	var err error
	if o.Kind == keep.Forget {
		err = errors.New("the other proxy has given the connection up")
	} else {
		err = s.routes(a, t, o)
	}
	if err != nil {
		relay.Reset(t.job)
		err = reason.Errorf(reason.NotKept, "%w", err)
		p.refuse(a.far, err)
		return nil, err
	}
	c := t.connection(kindAccepted)
	c.peer, c.linkID, c.pipe.Far = a.hello.Instance, a.hello.ID, a.far
	answer := link.Answer{Instance: p.instance, Accepted: p.accepted(a.hello.Offers)}
	if err := p.openLink(c, matching(a.hello.Offers, answer.Accepted), relay.Link{ID: a.hello.ID, Dialer: a.hello.Instance, Acceptor: p.instance}); err != nil {
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

// routes has the router see the connection, of which a proxy with that peer's link has
// carried the other end, where it sees connections.
func (s *passes) routes(a arrival, t *transit, o keep.Pass) (err error) {
	router, from := s.p.opts.Jobs, s.p.peer(a.far, a.hello)
	switch r, ok := t.job.(routed); {
	case ok:
		r.GoOn(from)
	case router != nil:
		t.job, err = router.ResumeInbound(bare(t.job), t.Destination, t.scope(), from, o.Ready)
	}
	return err
}

// closeCodec ends the codec of a connection that is not to be carried.
func (c *connection) closeCodec() {
	if c.pipe.Sender != nil {
		c.pipe.Sender.Close()
	}
	if c.pipe.Receiver != nil {
		c.pipe.Receiver.Close()
	}
}

// resume gives a link to the connection that is to go on with it.
func (s *passes) resume(a arrival, o keep.Pass) error {
	settled := s.heir.Load() == nil || s.p.kept.settled.Load() // before it is looked for
	s.mu.Lock()
	t := s.accepted[o.Session]
	waits := t != nil && t.waits
	s.mu.Unlock()
	var err error
	switch {
	case t == nil && o.Kind == keep.Resume && !settled:
		err = reason.Errorf(reason.Starting, "it is not known yet which connections were handed over")
	case t == nil:
		err = reason.Errorf(reason.NotKept, "the connection was not handed over to here")
	case !waits:
		err = reason.Errorf(reason.Starting, "the connection has a link")
	default:
		err = s.p.isSame(a, sameAs{t.Client, t.Destination, t.Far, t.Cgroup})
	}
	if err == nil {
		select {
		case t.links <- a:
			return nil
		default:
			err = reason.Errorf(reason.Starting, "the connection is about to go on over another link")
		}
	}
	s.p.refuse(a.far, err)
	if reason.Of(err) == reason.Starting {
		return nil // it dials again
	}
	return reason.Wrap(err, "link from %s", a.source())
}

// sameAs is what must be the same of a link with which a connection goes on.
type sameAs struct {
	client, destination netip.AddrPort
	far                 netip.Addr // where links come from
	cgroup              uint64     // of the process
}

// isSame returns nil if a link may go on with a connection.
func (p *Proxy) isSame(a arrival, want sameAs) error {
	if want.client != a.hello.Client || want.destination != a.hello.Destination || want.far != a.source() {
		return reason.Errorf(reason.NotAllowed, "the connection is another one")
	}
	scope, err := p.mayServe(a.hello.Destination, a)
	if err == nil && scope.Cgroup != want.cgroup {
		err = reason.Errorf(reason.NotAllowed, "the connection is of another cgroup")
	}
	return err
}

package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// resumeEvery is the pause between attempts to take a connection up again.
const resumeEvery = 50 * time.Millisecond

var errHalted = reason.Errorf(reason.Stopping, "a connection whose link broke is not taken up again: this proxy is stopping")

// goOn takes a session up again whose link broke, and returns what carries it.
func (s *session) goOn(broken error) (*connection, error) {
	held, ok := s.detach()
	if !ok || len(held) == 0 {
		if s.page.Meta().Dialed {
			s.forget()
		}
		return nil, reason.Errorf(reason.ResetByFarSide, "%w, of a connection that is not kept", broken)
	}
	return s.await(held)
}

// await takes the session up again from where the kernel says it stands, while one of
// the lanes is open: then somebody holds the other end. Without lanes it is not known.
func (s *session) await(held []*lane) (*connection, error) {
	mine, err := s.standing()
	if err != nil {
		if s.page.Meta().Dialed {
			s.forget()
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.k.p.life, takenUpWithin)
	defer cancel()
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

// standing says where the session stands, for the other proxy.
func (s *session) standing() (o keep.Offer, err error) {
	m := s.page.Meta()
	o = keep.Offer{Kind: keep.Resume, Session: m.Session}
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
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

// hello is that of the session's next link.
func (s *session) hello(o keep.Offer) *link.Hello {
	p, m := s.k.p, s.page.Meta()
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: m.Client, Destination: m.Destination}
	if o.Message {
		h.Offers = p.codecOffers()
	}
	h.Offers = append(h.Offers, link.Offer{Codec: keep.Name, Data: o.Append(nil)})
	return h
}

func (s *session) mesh() string {
	return net.JoinHostPort(s.page.Meta().Destination.Addr().String(), strconv.Itoa(int(s.k.p.opts.MeshPort)))
}

// dialAgain dials until the other proxy, or the one after it, goes on.
func (s *session) dialAgain(ctx context.Context, mine keep.Offer, gone <-chan struct{}) (*connection, error) {
	p := s.k.p
	for {
		h := s.hello(mine)
		far, answer, err := p.links.Dial(ctx, s.mesh(), h)
		if err == nil {
			var c *connection
			if c, err = s.follow(far, h.ID, answer.Instance, mine, answer.Accepted); err == nil {
				return c, nil
			}
			relay.Reset(far)
		}
		if p.life.Err() != nil {
			return nil, reason.Errorf(reason.Stopped, "taking a connection up again: %w", context.Cause(p.life))
		}
		if refused(err) {
			return nil, reason.Errorf(reason.NotKept, "taking a connection up again: %w", err)
		}
		select {
		case <-s.k.halt:
			return nil, errHalted
		case <-gone:
			return nil, reason.Errorf(reason.NotKept, "taking a connection up again: the other end is not held any more: %w", err)
		case <-ctx.Done():
			s.forget()
			return nil, reason.Errorf(reason.NotKept, "taking a connection up again, for %v: %w", takenUpWithin, err)
		case <-time.After(resumeEvery):
		}
	}
}

// refused reports whether a proxy, with this error, does not go on, now or later. One
// that is killed, is about to end, or has just begun is followed by one that may.
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

// forget tells the other proxy that it need not wait for the session: the process is
// about to connect again, which a process at the other end may refuse from a node
// whose connection is still there.
func (s *session) forget() {
	ctx, cancel := context.WithTimeout(s.k.p.life, s.k.p.opts.HelloTimeout)
	defer cancel()
	h := s.hello(keep.Offer{Kind: keep.Forget, Session: s.page.Meta().Session})
	far, _, err := s.k.p.links.Dial(ctx, s.mesh(), h)
	if err == nil {
		far.Close()
	}
}

// follow makes what carries the session on over a new link, at the dialer's end.
func (s *session) follow(far net.Conn, id uint64, peer relay.Instance, mine keep.Offer, accepted []link.Offer) (*connection, error) {
	theirs, ok := offered(accepted)
	if !ok || theirs.Session != mine.Session {
		return nil, reason.Errorf(reason.NotKept, "the other proxy says nothing of it")
	}
	taken, err := keep.Take(mine, theirs)
	if err != nil {
		return nil, reason.Errorf(reason.NotKept, "%w", err)
	}
	c := s.resumeOver(far, id, peer)
	if taken.Codecs {
		p := s.k.p
		l := relay.Link{ID: id, Dialer: p.instance, Acceptor: peer, Dialed: true}
		if err := p.openLink(c, accepted, l); err != nil {
			return nil, err
		}
		p.observe(c)
	}
	return c, s.attachAgain(c, mine, theirs, taken)
}

// resumeOver is what carries the session next.
func (s *session) resumeOver(far net.Conn, id uint64, peer relay.Instance) *connection {
	m := s.page.Meta()
	c := &connection{kind: kindAccepted, client: m.Client, destination: m.Destination, job: m.Job, origin: m.Origin, peer: peer, linkID: id, kept: s}
	if m.Dialed {
		c.kind = kindLink
	}
	c.pipe.Job, c.pipe.Far = s.job, far
	return c
}

func (s *session) attachAgain(c *connection, mine, theirs keep.Offer, taken keep.Taken) error {
	return s.attach(c, mine.Position, &relay.Keeping{Begun: mine.Position.Consumed > 0, FarBegun: theirs.Position.Consumed > 0, Skip: taken.Skip})
}

// takeAgain waits for a link of the other proxy, or of the one after it.
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
			relay.Reset(a.far) // it dials again
		case <-s.k.halt:
			return nil, errHalted
		case <-gone:
			return nil, reason.Errorf(reason.NotKept, "waiting for the other proxy: the other end is not held any more")
		case <-ctx.Done():
			if s.k.p.life.Err() != nil {
				return nil, reason.Errorf(reason.Stopped, "waiting for the other proxy: %w", context.Cause(s.k.p.life))
			}
			return nil, reason.Errorf(reason.NotKept, "the other proxy has not come within %v", takenUpWithin)
		}
	}
}

// answer answers a link with which the session is to go on. The process's connection
// is reset before the other proxy learns that it cannot resume.
func (s *session) answer(a arrival, mine keep.Offer) (*connection, error) {
	theirs, _ := offered(a.hello.Offers)
	taken, err := keep.Take(mine, theirs)
	if theirs.Kind == keep.Forget {
		err = errors.New("the other proxy has given it up")
	}
	if err != nil {
		relay.Reset(s.job)
		err = reason.Errorf(reason.NotKept, "%w", err)
		s.k.p.refuse(a.far, err)
		return nil, err
	}
	p := s.k.p
	answer := link.Answer{Instance: p.instance}
	c := s.resumeOver(a.far, a.hello.ID, a.hello.Instance)
	if taken.Codecs {
		answer.Accepted = p.accepted(a.hello.Offers)
		if err := p.openLink(c, matching(a.hello.Offers, answer.Accepted), relay.Link{ID: a.hello.ID, Dialer: a.hello.Instance, Acceptor: p.instance}); err != nil {
			return nil, err
		}
	}
	if err := s.attachAgain(c, mine, theirs, taken); err != nil {
		return nil, err
	}
	answer.Accepted = append(answer.Accepted, link.Offer{Codec: keep.Name, Data: mine.Append(nil)})
	if err := link.Reply(a.far, &answer); err != nil {
		s.detach()
		return nil, err
	}
	return c, nil
}

// resume gives a link to the session that it is to go on with.
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
	if err := p.isSame(a, sameAs{m.Client, m.Destination, m.Far, m.Cgroup}); err != nil {
		return refuse(err)
	}
	if !s.give(a) {
		return refuse(reason.Errorf(reason.NotKept, "the connection has ended"))
	}
	return nil
}

// give has the session go on with a link, and breaks the one that it has.
func (s *session) give(a arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	select {
	case before := <-s.links:
		relay.Reset(before.far)
	default:
	}
	s.links <- a
	if s.now != nil {
		s.now.pipe.Break()
	}
	return true
}

package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Bounds on the connections to mesh ports whose peer has not sent its hello yet, in total and per
// source. A proxy sends it within milliseconds. They take no slot of [admission], so that strangers
// cannot use up the slots of the job.
const (
	maxHandshakes       = 512
	handshakesPerSource = 64
)

// greet counts a connection to a mesh port among those whose hello has not come, and returns what
// serves it. It is called in the order in which connections come: of goroutines that run in any
// order the one of a silent connection might begin last, and the oldest make room.
func (p *Proxy) greet(conn *net.TCPConn, netns uint64) (serve func() error) {
	from := addrPort(conn.RemoteAddr())
	if p.opts.TLS == nil && !p.opts.Insecure && !from.Addr().IsLoopback() {
		return func() error {
			return reason.Errorf(reason.NotAllowed, "link from %s: plain links are allowed on loopback only; configure TLS, or allow them with --insecure", from)
		}
	}
	end := p.greeting.Begin(conn, from.Addr())
	return func() error { return p.hear(conn, netns, end) }
}

// hear reads the hello of a connection to a mesh port, and serves it as what the hello asks for. end
// has it count no more, and says whether it was reset to make room. A peer that is no proxy gets no
// answer, not even an error, so that the port shows nothing to a scanner.
func (p *Proxy) hear(conn *net.TCPConn, netns uint64, end func() (reset bool)) error {
	from := addrPort(conn.RemoteAddr())
	far, hello, err := p.acceptor.Accept(p.life, conn)
	// A connection that was closed to make room for newer ones failed with some other error
	// as well; the reason is this.
	if end() {
		return reason.Errorf(reason.Silent, "link from %s: reset before its hello: too many pending handshakes from its source", from)
	}
	if errors.Is(err, link.ErrNothing) {
		return nil
	}
	if err != nil {
		return reason.Wrap(err, "link from %s", from)
	}
	if err := p.enter(conn.RemoteAddr()); err != nil {
		return err
	}
	// The order of these tests matters only for links to the mesh port itself; all others are for a
	// destination.
	o, isOffer := offered(hello.Offers)
	if isOffer && o.Kind == keep.Acks {
		p.takeLane(arrival{conn, far, hello, netns})
		return nil
	}
	if codec, id := p.sharedLane(hello.Offers); codec != nil {
		p.takeShared(arrival{conn, far, hello, netns}, codec, id)
		return nil
	}
	if hello.Destination.Port() == p.opts.MeshPort && p.opts.Jobs != nil {
		return p.takeSite(arrival{conn, far, hello, netns})
	}
	defer p.entry.leave()
	if isOffer && o.Kind != keep.Begin {
		return p.resume(arrival{conn, far, hello, netns}, o)
	}
	if o, ok := passOffered(hello.Offers); ok && o.Kind != keep.Begin {
		return p.passes.resume(arrival{conn, far, hello, netns}, o)
	}
	return p.inbound(arrival{conn, far, hello, netns})
}

// arrival is a link whose hello has come, and which was not answered yet.
type arrival struct {
	conn  *net.TCPConn
	far   net.Conn // conn, or TLS on it
	hello *link.Hello
	netns uint64 // inode of the network namespace in which it arrived; 0: this process's
}

// source returns the address that the link comes from.
func (a *arrival) source() netip.Addr { return addrPort(a.conn.RemoteAddr()).Addr() }

// inbound carries a connection that comes over a link to its real destination on this host, to its
// end. The destination is connected before the link is answered, so that the dialer learns of a
// refusal and can pass it on.
func (p *Proxy) inbound(a arrival) error {
	from, far, hello := addrPort(a.conn.RemoteAddr()), a.far, a.hello
	c := &connection{kind: kindAccepted, client: hello.Client, destination: hello.Destination, peer: hello.Proven, peerName: hello.Instance, linkID: hello.ID}
	c.pipe.Far = far
	// The destination is connected before the codec is opened and the answer sent: only then
	// is it known whether the link can be accepted.
	scope, err := p.admit(c, a)
	if err != nil {
		p.refuse(far, err)
		return reason.Wrap(err, "link from %s", from)
	}
	defer p.entry.disclaim(scope.Cgroup)
	c.scope = scope
	answer := link.Answer{Instance: p.instance, Accepted: p.accepted(hello.Offers)}
	if err := p.openLink(c, matching(hello.Offers, answer.Accepted), relay.Link{ID: hello.ID, Dialer: hello.Proven, Acceptor: p.instance}); err != nil {
		p.refuse(far, err)
		c.pipe.Abandon()
		return err
	}
	if o, ok := offered(hello.Offers); ok {
		if holder := p.kept.holder(); holder != nil {
			c.kept = p.kept.beginSession(c, holder, keep.Meta{Session: o.Session, Far: a.source()})
		}
		if c.kept != nil {
			answer.Accepted = append(answer.Accepted, beginOffer(o.Session))
		}
	}
	// A session survives more than a transit does, so it comes first.
	if o, ok := passOffered(hello.Offers); ok && c.kept == nil {
		p.passes.beginTransit(c, keep.State{Session: o.Session, Far: a.source(), Cgroup: scope.Cgroup, Netns: scope.Netns})
		if c.transit != nil {
			answer.Accepted = append(answer.Accepted, passOffer(o))
		}
	}
	// From here on the connection is carried, if the answer gets through.
	if err := link.Reply(far, &answer); err != nil {
		c.pipe.Abandon()
		if c.transit != nil {
			p.passes.removeTransit(c.transit)
		}
		if c.kept != nil {
			c.kept.endSession()
		}
		c.closeCodec()
		return reason.Wrap(err, "link from %s", from)
	}
	return p.carryOn(c)
}

// takeSite serves a link between sites, which has a slot, in a goroutine of its own: it must not
// count as a connection of the job, or Drain would wait for it.
func (p *Proxy) takeSite(a arrival) error {
	source := handshake.SourceOf(addrPort(a.conn.RemoteAddr()).Addr())
	if !p.visits.begin(source) {
		p.entry.leave()
		p.opts.Jobs.RefuseSite(source)
		return reason.Errorf(reason.TooMany, "link between sites from %s: it has as many as it may have", source)
	}
	p.sites.Go(func() {
		defer p.entry.leave()
		defer p.visits.end(source)
		if err := p.serveSite(a); err != nil {
			p.fail(err)
		}
		a.far.Close()
	})
	return nil
}

// serveSite answers a link between sites, and has the jobs serve it to its end.
func (p *Proxy) serveSite(a arrival) error {
	if err := link.Reply(a.far, &link.Answer{Instance: p.instance}); err != nil {
		return err
	}
	err := p.opts.Jobs.ServeSite(p.sitesLife, a.far, p.peer(a.far, a.hello), addrPort(a.conn.LocalAddr()).Addr())
	if reason.Has(err) {
		return err
	}
	if err != nil && p.sitesLife.Err() == nil && !errors.Is(err, io.EOF) {
		return reason.Errorf(reason.ResetByFarSide, "link between sites: %w", err)
	}
	return nil
}

// admit connects c to its real destination, if the link may have that. Without an error the slot
// counts as one of the destination's cgroup.
func (p *Proxy) admit(c *connection, a arrival) (jobs.Scope, error) {
	scope, err := p.mayServe(c.destination, a)
	if err != nil {
		return scope, err
	}
	// The dialer takes this refusal for that of a proxy which is being replaced, and tries
	// again.
	if p.conns.stopping.Load() {
		return scope, reason.Errorf(reason.Stopping, "this proxy is stopping")
	}
	if err := p.claim(scope.Cgroup); err != nil {
		return scope, err
	}
	job, err := p.dial(c.destination, p.opts.localDial())
	if err != nil {
		p.entry.disclaim(scope.Cgroup)
		return scope, err
	}
	c.pipe.Job = job
	if p.opts.Jobs != nil {
		c.pipe.Inbound = p.opts.Jobs.Inbound(c.destination, scope, p.peer(a.far, a.hello))
	}
	return scope, nil
}

// mayServe returns the scope of the process that listens at a destination, and an error where links
// may not have that: it must be at the address at which the link arrived and belong to a job, or be
// allowed. A link to the mesh port would make the proxy connect to itself.
func (p *Proxy) mayServe(destination netip.AddrPort, a arrival) (jobs.Scope, error) {
	at := addrPort(a.conn.LocalAddr()).Addr()
	refused := reason.Errorf(reason.NotAllowed, "destination %s is not an address of this proxy's, %s", destination, at)
	if destination.Port() == p.opts.MeshPort {
		return jobs.Scope{}, refused
	}
	for _, prefix := range p.opts.Allow {
		if prefix.Contains(destination.Addr()) {
			return jobs.Scope{}, nil
		}
	}
	if destination.Addr() != at {
		return jobs.Scope{}, refused
	}
	return p.reach.scope(p.life, a.netns, destination)
}

// refuse answers a link with the reason why it is refused, and closes it.
func (p *Proxy) refuse(far net.Conn, cause error) {
	far.SetDeadline(time.Now().Add(p.opts.HelloTimeout))
	a := link.Answer{Instance: p.instance, Refused: reason.Of(cause), Text: cause.Error()}
	if err := link.Reply(far, &a); err != nil {
		p.log.Debug("cannot send a refusal to the peer", "error", err)
	}
	far.Close()
}

// accepted returns the answer to a hello's offers: the first of this side's codecs that the other
// side knows, with this side's own data, and [link.Runs] where both know it.
func (p *Proxy) accepted(offered []link.Offer) (both []link.Offer) {
	// Only one codec is accepted, while Runs may come in addition.
	codec := false
	for _, mine := range p.offers() {
		for _, o := range offered {
			if o.Codec != mine.Codec || mine.Codec != link.Runs && codec {
				continue
			}
			codec = codec || mine.Codec != link.Runs
			both = append(both, mine)
			break
		}
	}
	return both
}

// matching returns those of the offers that were accepted, in the order of the acceptance.
func matching(offered, accepted []link.Offer) (both []link.Offer) {
	for _, a := range accepted {
		for _, o := range offered {
			if o.Codec == a.Codec {
				both = append(both, o)
			}
		}
	}
	return both
}

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/relay"
)

// outbound carries a connection that a process of this host's job has made, to its end.
func (p *Proxy) outbound(job *net.TCPConn, l Listener, destination netip.AddrPort) error {
	c := &connection{kind: kindLink, client: addrPort(job.RemoteAddr()), destination: destination, job: l.Job, origin: l.Origin, scope: l.Scope}
	if c.origin == "" {
		c.origin = c.client.Addr().String()
	}
	c.pipe.Job = job
	// The router has to see the connection from its first byte.
	if p.opts.Jobs != nil {
		c.pipe.Outbound = p.opts.Jobs.Outbound(destination, l.Scope, c.origin)
	}
	established, err := p.viaPeer(c)
	if err == nil && !established {
		err = p.direct(c)
	}
	if err != nil && p.setup.Err() != nil {
		p.abandonSetup(c)
		return nil
	}
	if err != nil {
		return err
	}
	p.observe(c)
	return p.carryOn(c)
}

// abandonSetup resets a connection that was still being set up when the proxy began to end. It has
// carried nothing, so its process loses nothing: it connects again, by way of the next proxy.
func (p *Proxy) abandonSetup(c *connection) {
	p.log.Debug("resetting a connection that was still being set up", "client", c.client, "destination", c.destination)
	p.passes.drains(drainNotSetUp)
	c.pipe.Abandon()
}

// carryOn carries a connection that is set up to its end, over one link after another where it can
// change them.
func (p *Proxy) carryOn(c *connection) error {
	switch {
	case c.kept != nil:
		return p.carryKept(c.kept, c)
	case c.transit != nil:
		return p.passes.carry(c)
	}
	return p.carry(c)
}

// observe has the codec for values observe a connection that does not use it, so that the page can
// show what rules would save.
func (p *Proxy) observe(c *connection) {
	if p.opts.Values != nil && c.codec != values.Name {
		c.pipe.Observer = p.opts.Values.Observe(p.linkOf(c, relay.Link{Dialed: true}))
	}
}

// viaPeer links c to the proxy at its destination. It returns false where the connection is to be
// made directly, and an error where it must fail. A fault between the two proxies does not fail the
// connection, unless MeshOnly is set: the job works without psidecar, too.
//
// The hello offers both mechanisms by which a connection can change links. At most one of them is
// accepted.
func (p *Proxy) viaPeer(c *connection) (bool, error) {
	if ok, why := p.mayLink(c.destination); !ok {
		if p.opts.MeshOnly {
			return false, reason.Errorf(reason.NoPeer, "connection from %s to %s: no proxy there, and --mesh-only forbids direct connections", c.client, c.destination)
		}
		c.past = why
		p.conns.wentPast(why)
		return false, nil
	}
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: c.client, Destination: c.destination, Offers: p.offersOf(c.origin, c.job)}
	holder := p.kept.holder()
	// One id serves for both mechanisms.
	session, err := keep.NewID()
	if err != nil {
		return false, reason.Errorf(reason.Internal, "naming a connection: %w", err)
	}
	if holder != nil {
		h.Offers = append(h.Offers, beginOffer(session))
	}
	h.Offers = append(h.Offers, passOffer(keep.Pass{Session: session}))
	// The link goes to the destination's own address, at the mesh port: whoever can answer there
	// can also receive the connection itself.
	mesh := net.JoinHostPort(c.destination.Addr().String(), strconv.Itoa(int(p.opts.MeshPort)))
	dialer := p.dialerTo(c.destination.Addr())
	far, answer, err := p.link(&dialer, c, mesh, h)
	switch {
	case err == nil:
		if err := p.linked(c, far, answer, h.ID); err != nil {
			far.Close()
			return false, err
		}
		if o, ok := offered(answer.Accepted); ok && holder != nil && o.Session == session {
			c.kept = p.kept.beginSession(c, holder, keep.Meta{Dialed: true, Session: session})
		}
		if o, ok := passOffered(answer.Accepted); ok && c.kept == nil && o.Session == session {
			p.passes.beginTransit(c, keep.State{Dialed: true, Session: session, Cgroup: c.scope.Cgroup, Netns: c.scope.Netns})
		}
		return true, nil
	// This proxy has given up, so nothing is learned about the other one.
	case p.setup.Err() != nil:
		return false, errLeaves
	case errors.Is(err, errCrowded):
		return false, reason.Errorf(reason.NoPeer, "connection from %s to %s: %w", c.client, c.destination, err)
	// The job would have got the same error without proxies.
	case reason.Of(err) == reason.Unreachable, reason.Of(err) == reason.NoDescriptors:
		return false, err
	// Whoever keeps a proxy busy must not bring about connections without TLS. The process tries again.
	case p.opts.TLS != nil && p.peers.slow(c.destination.Addr(), err):
		return false, reason.Errorf(reason.NoPeer, "connection from %s to %s: the proxy there has answered lately, and is slow now: %w", c.client, c.destination, err)
	}
	// Whatever it is that keeps the two proxies apart, the job need not suffer.
	why, news := whyPast(err), false
	if r := reason.Of(err); r == reason.ForeignPort || r == reason.NotAllowed {
		p.peers.met(c.destination.Addr()) // it refuses this destination, not others
	} else {
		news = p.peers.missed(c.destination.Addr(), why)
	}
	// That a host has no proxy is no failure, unless there is a reason beyond that.
	if !errors.Is(err, link.ErrNoProxy) || reason.Has(err) {
		p.fail(err)
	}
	if p.opts.MeshOnly {
		return false, reason.Errorf(reason.NoPeer, "connection from %s to %s: %w", c.client, c.destination, err)
	}
	c.past = why
	p.conns.wentPast(why)
	// With TLS configured connections are expected to be protected; one warning for each host
	// and reason is enough.
	if p.opts.TLS != nil && news {
		p.log.Warn("connections to this host bypass the mesh and are unprotected, as without psidecar; use --mesh-only to refuse them", "host", c.destination.Addr(), "reason", why, "error", err)
	} else {
		p.log.Debug("no proxy at the destination, connecting directly", "destination", c.destination, "error", err)
	}
	return false, nil
}

// linked makes an accepted link the connection's: it notes the peer and opens the codec.
func (p *Proxy) linked(c *connection, far net.Conn, answer *link.Answer, id uint64) error {
	p.peers.met(c.destination.Addr())
	p.identities.noteAnswer(c.destination.Addr(), identity{answer.Instance, link.KeyOf(far)})
	if r, ok := c.pipe.Outbound.(jobs.Line); ok && slices.ContainsFunc(answer.Accepted, func(o link.Offer) bool { return o.Codec == link.Runs }) {
		r.Linked()
	}
	c.pipe.Far, c.peer, c.peerName, c.linkID = far, answer.Proven, answer.Instance, id
	l := relay.Link{ID: id, Dialer: p.instance, Acceptor: answer.Proven, Dialed: true}
	// Only package jobs' lines route.
	l.Routes, _ = c.pipe.Outbound.(relay.Routes)
	return p.openLink(c, answer.Accepted, l)
}

// The proxy of a host allows handshakesPerSource of this one. dialingToHost is how many connections
// dial it at a time, and dialingOfScope how many of those are of one scope: a tenant that connects
// to more waits for itself, for at most dialTurn.
const (
	dialingToHost  = handshakesPerSource * 3 / 4
	dialingOfScope = handshakesPerSource / 2
	dialTurn       = 30 * time.Second
)

// errCrowded means that a connection's scope has too many others that are about to be made. The host
// is not to blame, and is not reached past its proxy.
var errCrowded = fmt.Errorf("more connections of its processes than %d are being made to that host, for more than %v", dialingOfScope, dialTurn)

// dialing is what connections that are about to be made have a share of.
type dialing struct {
	scope jobs.Scope
	host  netip.Addr
}

// dialLink dials the proxy of the destination once, when it is c's turn.
func (p *Proxy) dialLink(dialer *link.Dialer, c *connection, mesh string, h *link.Hello) (net.Conn, *link.Answer, error) {
	turn, cancel := context.WithTimeout(p.setup, dialTurn)
	defer cancel()
	host := c.destination.Addr()
	end, err := p.ofScopes.Take(turn, dialing{c.scope, host})
	if err != nil {
		return nil, nil, errCrowded
	}
	defer end()
	if end, err = p.toHosts.Take(turn, host); err != nil {
		return nil, nil, errCrowded
	}
	defer end()
	return dialer.Dial(p.setup, mesh, h)
}

// link dials the proxy of the destination, until setup ends. It tries again while one that was there
// may be replaced, or one that is new may appear.
func (p *Proxy) link(dialer *link.Dialer, c *connection, mesh string, h *link.Hello) (net.Conn, *link.Answer, error) {
	host, awaited := c.destination.Addr(), false
	for {
		far, answer, err := p.dialLink(dialer, c, mesh, h)
		if !p.peers.mayReturn(host, err, p.opts.PeerGrace) {
			if !p.peers.mayAppear(host, err, p.opts.PeerPatience) {
				if awaited {
					p.conns.awaited(err == nil)
				}
				return far, answer, err
			}
			awaited = true
		}
		select {
		case <-p.setup.Done():
		case <-time.After(peerRetry):
		}
	}
}

// Why a connection bypassed the mesh, besides the reasons for which links fail.
const (
	noProxy       = "no_proxy"       // nothing at the mesh port, or no proxy
	notConfigured = "not_configured" // links to other hosts need TLS or --insecure
)

// whyPast returns the reason of a failed link, as counted.
func whyPast(err error) string {
	if reason.Has(err) {
		return string(reason.Known(reason.Of(err)))
	}
	return noProxy
}

// knownPatience is how many times longer than others a host that has a proxy gets to answer at its
// mesh port. It may be busy, or the link full, and a connection that goes direct stays so.
const knownPatience = 10

// dialerTo returns what dials a host's proxy: patiently if this proxy has met that one, or if
// connections may bypass this one, which then gets those alone at whose other end the agent has
// found a proxy.
func (p *Proxy) dialerTo(host netip.Addr) link.Dialer {
	d := p.links
	if p.peers.known(host) || p.Spares() {
		d.ConnectTimeout *= knownPatience
	}
	return d
}

// peerRetry is the pause between attempts to reach a proxy that may be back soon.
const peerRetry = 50 * time.Millisecond

// mayLink reports whether to try a link for that destination. Where a link would be wanted and
// cannot be, why is the reason.
func (p *Proxy) mayLink(destination netip.AddrPort) (ok bool, why string) {
	switch {
	case p.opts.MeshPort == 0 || destination.Port() == p.opts.MeshPort:
		return false, "" // none is wanted
	case p.opts.TLS == nil && !p.opts.Insecure && !destination.Addr().IsLoopback():
		return false, notConfigured
	}
	return p.peers.try(destination.Addr())
}

// codecOffers returns an offer for each codec, in order of preference.
func (p *Proxy) codecOffers() (offers []link.Offer) {
	for _, c := range p.opts.Codecs {
		offers = append(offers, link.Offer{Codec: c.Name(), Data: c.Offer()})
	}
	return offers
}

// offers returns what this proxy offers on a link: codecs, and names of runs where it routes.
func (p *Proxy) offers() []link.Offer {
	offers := p.codecOffers()
	if p.opts.Jobs != nil {
		offers = append(offers, link.Offer{Codec: link.Runs})
	}
	return offers
}

// offersOf returns the offers for a connection of a job. Where its owner wants no codec, none is
// offered.
func (p *Proxy) offersOf(origin, job string) []link.Offer {
	offers := p.offers()
	if p.opts.Titles.Of(origin, job).Wishes.Codec == noneCodec {
		offers = slices.DeleteFunc(offers, func(o link.Offer) bool { return o.Codec != link.Runs })
	}
	return offers
}

// Codecs that a job's owner may ask for, besides those of flags; see package policy.
const (
	noneCodec = "none"
	autoCodec = "auto"
)

// encodesAlways reports whether messages of a connection are encoded whether that pays or not. The
// owner's wish comes before the flag.
func (p *Proxy) encodesAlways(c *connection) bool {
	if wish := p.opts.Titles.Of(c.origin, c.job).Wishes.Codec; wish != "" {
		return wish != autoCodec
	}
	return !p.opts.Auto
}

// direct connects c to its real destination, bypassing the mesh.
func (p *Proxy) direct(c *connection) error {
	c.kind = kindDirect
	far, err := p.dial(c.destination, p.opts.DialTimeout)
	if err != nil {
		return err
	}
	c.pipe.Far = far
	return nil
}

// dial connects to a real destination, until setup ends. The error's reason tells a lack of
// descriptors and the proxy's end from an unreachable destination.
func (p *Proxy) dial(destination netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(p.setup, timeout)
	defer cancel()
	conn, err := p.dialer.DialContext(ctx, "tcp", destination.String())
	switch {
	case err == nil:
		return conn, nil
	case reason.IsNoDescriptors(err):
		return nil, reason.Errorf(reason.NoDescriptors, "connecting to %s: %w", destination, err)
	case p.setup.Err() != nil:
		return nil, reason.Errorf(reason.Stopping, "connecting to %s: %w", destination, errLeaves)
	}
	return nil, reason.Errorf(reason.Unreachable, "connecting to %s: %w", destination, err)
}

// openLink opens the codec that both ends agreed on, if any, for c. offered is what the other end
// has offered.
func (p *Proxy) openLink(c *connection, offered []link.Offer, l relay.Link) error {
	l = p.linkOf(c, l)
	// All connections to one proxy share what is known of the path there.
	if !p.encodesAlways(c) {
		m := &payoff.Meter{Path: p.paths.To(c.peer), Load: &p.load}
		c.pipe.Payoff, l.Pays, l.PerByte = m, func() bool { return m.Encode(time.Now()) }, m.Path.PerByte
	}
	for _, codec := range p.opts.Codecs {
		for _, o := range offered {
			if o.Codec != codec.Name() {
				continue
			}
			// The codec dials it only when it finds several processes of the other host
			// behind this one's links.
			l.Lane = func(ctx context.Context, data []byte) (net.Conn, error) {
				return p.dialShared(ctx, c, codec.Name(), data)
			}
			var err error
			if c.pipe.Sender, c.pipe.Receiver, err = codec.Open(l, o.Data); err != nil {
				return reason.Errorf(reason.Codec, "connection from %s to %s: starting codec %s: %w", c.client, c.destination, o.Codec, err)
			}
			c.codec = o.Codec
			return nil
		}
	}
	return nil
}

// linkOf completes l with what is known of the connection.
func (p *Proxy) linkOf(c *connection, l relay.Link) relay.Link {
	l.Job, l.Origin, l.Wake, l.Continues = c.job, c.origin, c.pipe.Wake, c.transit != nil
	l.Altered = func() {
		if c.kept != nil {
			c.kept.alters()
		}
	}
	if far := c.pipe.Far; far != nil {
		l.Alive = func() bool { return relay.Established(far) }
	}
	// Without either of them nobody knows which job the process is of, and values must not be
	// shared across jobs.
	if c.job != "" || c.origin != c.client.Addr().String() {
		l.Scope = c.job + " " + c.origin
	}
	l.Client, l.Destination, l.HeadLimit, l.Memory = c.client, c.destination, relay.HeadLimit, p.memory
	return l
}

// carry runs c over its present link, until that ends. It owns both halves: they are closed on
// return, unless the error is relay.ErrPassed or relay.ErrBroken.
func (p *Proxy) carry(c *connection) error {
	p.conns.addConnection(c)
	defer p.conns.remove(c)
	ended, err := p.gather(c)
	if err != nil {
		c.pipe.Abandon()
		sock.Reset(c.pipe.Far)
		c.closeCodec()
		return reason.Wrap(err, "%s connection from %s to %s", c.kind, c.client, c.destination)
	}
	p.log.Debug("connection", "kind", c.kind, "client", c.client, "destination", c.destination, "codec", c.codec)
	err = c.pipe.Run(p.life, p.memory)
	ended()
	if errors.Is(err, relay.ErrPassed) {
		return err
	}
	if err != nil {
		return reason.Wrap(err, "%s connection from %s to %s", c.kind, c.client, c.destination)
	}
	return nil
}

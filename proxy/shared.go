package proxy

import (
	"context"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// sharing is a codec that sends values once to a host; see package shared.
type sharing interface {
	ServeLane(ctx context.Context, from relay.Instance, id []byte, conn net.Conn, m *relay.Memory) error
	Shared() shared.Counts
}

// sharedOffer returns the offer in a shared lane's hello: the group's id and the codec's
// name.
func sharedOffer(codec string, id []byte) link.Offer {
	return link.Offer{Codec: shared.Name, Data: append(append([]byte(nil), id...), codec...)}
}

// dialPeer dials the mesh port that the hello names, for a lane of links to a peer. It fails where
// another proxy answers, or where one of the two has another certificate than for the links: the
// other end would not find what the lane is for.
func (p *Proxy) dialPeer(ctx context.Context, h *link.Hello, peer relay.Instance) (net.Conn, error) {
	conn, answer, err := p.links.Dial(ctx, h.Destination.String(), h)
	if err != nil {
		return nil, err
	}
	if answer.Proven != peer {
		conn.Close()
		return nil, reason.Errorf(reason.Identity, "lane to %s: the proxy is no longer the one that links were made to", h.Destination)
	}
	return conn, nil
}

// dialShared dials the proxy at the other end of a link for a lane over which values are shared.
func (p *Proxy) dialShared(ctx context.Context, c *connection, codec string, id []byte) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// ctx is the codec's; the proxy's end has to interrupt the dialing too.
	stop := context.AfterFunc(p.life, cancel)
	defer stop()
	at := netip.AddrPortFrom(c.destination.Addr(), p.opts.MeshPort)
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: at, Destination: at, Offers: []link.Offer{sharedOffer(codec, id)}}
	conn, err := p.dialPeer(ctx, h, c.peer)
	if err != nil {
		p.log.Debug("cannot open a lane for shared values", "to", at, "error", err)
		return nil, err
	}
	return conn, nil
}

// sharedLane returns the codec that a link is a shared lane for, and the group's id; nil
// where it is none.
func (p *Proxy) sharedLane(offers []link.Offer) (codec sharing, id []byte) {
	for _, o := range offers {
		// The group's id has a fixed size, and the codec's name follows it.
		if o.Codec != shared.Name || len(o.Data) < len(shared.ID{}) {
			continue
		}
		id, name := o.Data[:len(shared.ID{})], string(o.Data[len(shared.ID{}):])
		for _, c := range p.opts.Codecs {
			if s, ok := c.(sharing); ok && c.Name() == name {
				return s, id
			}
		}
	}
	return nil, nil
}

// takeShared serves a shared lane, which has a slot, to its end, in a goroutine. It does not
// keep the proxy from ending: the links that need it do.
func (p *Proxy) takeShared(a arrival, codec sharing, id []byte) {
	p.lanes.Go(func() {
		defer p.entry.leave()
		// Nothing on a lane needs an orderly end: what it brought is with the codec, or is
		// sent again.
		defer sock.Reset(a.far)
		if err := link.Reply(a.far, &link.Answer{Instance: p.instance}); err != nil {
			p.fail(reason.Wrap(err, "lane from %s", a.source()))
			return
		}
		if err := codec.ServeLane(p.life, a.hello.Proven, id, a.far, p.memory); err != nil && p.life.Err() == nil {
			p.log.Debug("lane for shared values closed", "from", a.source(), "error", err)
			p.conns.failed(reason.Codec)
		}
	})
}

// sharedState returns the counts of shared values; nil where no codec shares.
func (p *Proxy) sharedState() *shared.Counts {
	var sum *shared.Counts
	for _, codec := range p.opts.Codecs {
		if s, ok := codec.(sharing); ok {
			if sum == nil {
				sum = &shared.Counts{}
			}
			// Several codecs may share, each with lanes of its own.
			sum.Add(s.Shared())
		}
	}
	return sum
}

var (
	descShared      = prometheus.NewDesc("psidecar_proxy_shared_bytes_total", "Bytes of values pulled by several processes of a host: sent once to such hosts, saved because another process there had them, received for this host.", []string{"what"}, nil)
	descSharedHeld  = prometheus.NewDesc("psidecar_proxy_shared_held_bytes", "Bytes of shared values held now, sent to other hosts and received for this one.", nil, nil)
	descSharedPlain = prometheus.NewDesc("psidecar_proxy_shared_plain_total", "Answers for hosts with several processes that were sent unshared: no_lane (the lane is not open yet, or broke), unlike (such values differed between processes), memory (everything held is in flight), large (more than half of the memory limit).", []string{"reason"}, nil)
)

// collectShared sends them as metrics.
func (p *Proxy) collectShared(out chan<- prometheus.Metric) {
	s := p.sharedState()
	if s == nil {
		return
	}
	for what, n := range map[string]uint64{"sent": s.SentBytes, "spared": s.SparedBytes, "received": s.ReceivedBytes} {
		out <- prometheus.MustNewConstMetric(descShared, prometheus.CounterValue, float64(n), what)
	}
	out <- prometheus.MustNewConstMetric(descSharedHeld, prometheus.GaugeValue, float64(s.HeldBytes))
	for why, n := range s.Plain {
		out <- prometheus.MustNewConstMetric(descSharedPlain, prometheus.CounterValue, float64(n), why)
	}
}

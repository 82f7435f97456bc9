package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/reason"
)

// spareOffered returns the offer of a link to a spare server.
func spareOffered(offers []link.Offer) (o link.Offer, ok bool) {
	i := slices.IndexFunc(offers, func(o link.Offer) bool { return o.Codec == link.Spare })
	if i < 0 {
		return o, false
	}
	return offers[i], true
}

// DialSpare connects to the spare server that hello asks the proxy at an address for, for
// [jobs.Jobs]. The caller closes the connection.
func (p *Proxy) DialSpare(ctx context.Context, host netip.Addr, hello []byte) (net.Conn, error) {
	at := netip.AddrPortFrom(host, p.opts.MeshPort)
	// The same rule as for links that carry connections: these carry their values.
	if p.opts.TLS == nil && !p.opts.Insecure && !host.IsLoopback() {
		return nil, fmt.Errorf("a link to %s needs TLS or --insecure", host)
	}
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: at, Destination: at, Offers: []link.Offer{{Codec: link.Spare, Data: hello}}}
	conn, answer, err := p.links.Dial(ctx, at.String(), h)
	if err != nil {
		return nil, err
	}
	// A proxy of a version without spare servers would take the link for one between sites.
	if _, ok := spareOffered(answer.Accepted); !ok {
		conn.Close()
		return nil, fmt.Errorf("the proxy at %s has no spare servers: its version is older", host)
	}
	return conn, nil
}

// serveSpare answers a link to a spare server, and serves it to its end.
func (p *Proxy) serveSpare(a arrival, offer link.Offer) error {
	serve, err := p.opts.Jobs.SpareServer(offer.Data, p.peer(a.far, a.hello), addrPort(a.conn.LocalAddr()).Addr())
	if err != nil {
		p.refuse(a.far, err)
		// The other proxy comes again, as long as it may take this one to learn of the job.
		if reason.Of(err) == reason.Stopping {
			return nil
		}
		return err
	}
	if err := link.Reply(a.far, &link.Answer{Instance: p.instance, Accepted: []link.Offer{{Codec: link.Spare}}}); err != nil {
		return err
	}
	err = serve(p.sitesLife, a.far)
	if err != nil && p.sitesLife.Err() == nil && !errors.Is(err, io.EOF) {
		return reason.Errorf(reason.ResetByFarSide, "link to a spare server: %w", err)
	}
	return nil
}

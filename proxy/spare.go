package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/spare"
)

// spareKeeps in an answer says that the spare server can leave out values that the client keeps. Other bytes are for
// what later versions can do.
const spareKeeps = 1

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
func (p *Proxy) DialSpare(ctx context.Context, host netip.Addr, hello []byte) (spare.Link, error) {
	at := netip.AddrPortFrom(host, p.opts.MeshPort)
	// The same rule as for links that carry connections: these carry their values.
	if p.opts.TLS == nil && !p.opts.Insecure && !host.IsLoopback() {
		return spare.Link{}, fmt.Errorf("a link to %s needs TLS or --insecure", host)
	}
	h := &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: at, Destination: at, Offers: []link.Offer{{Codec: link.Spare, Data: hello}}}
	conn, answer, err := p.links.Dial(ctx, at.String(), h)
	if err != nil {
		return spare.Link{}, err
	}
	// A proxy of a version without spare servers would take the link for one between sites.
	accepted, ok := spareOffered(answer.Accepted)
	if !ok {
		conn.Close()
		return spare.Link{}, fmt.Errorf("the proxy at %s has no spare servers: its version is older", host)
	}
	return spare.Link{Conn: conn, Keeps: slices.Contains(accepted.Data, spareKeeps)}, nil
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
	if err := link.Reply(a.far, &link.Answer{Instance: p.instance, Accepted: []link.Offer{{Codec: link.Spare, Data: []byte{spareKeeps}}}}); err != nil {
		return err
	}
	err = serve(p.sitesLife, a.far)
	if err != nil && p.sitesLife.Err() == nil && !errors.Is(err, io.EOF) {
		return reason.Errorf(reason.ResetByFarSide, "link to a spare server: %w", err)
	}
	return nil
}

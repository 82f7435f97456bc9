package proxy

import (
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/internal/handover"
)

// unneededFor is for how long encoding must not have paid on a connection that gains nothing by
// this proxy.
const unneededFor = time.Minute

// Spares reports whether connections may bypass this proxy where their links are fast: nothing is
// asked of it but to encode messages where that pays. Once that was otherwise it stays so, since
// values may wait here, or keys be elsewhere.
func (p *Proxy) Spares() bool {
	o := &p.opts
	if !o.Spares || !o.Auto || o.Jobs != nil || o.Aggregate != nil || o.MeshOnly || o.TLS != nil || o.Values != nil && len(o.Values.Rules()) > 0 {
		p.asked.Store(true)
	}
	return !p.asked.Load()
}

// Unneeded returns where connections come from that gain nothing by this proxy: encoding pays on none
// to the same host, or nothing was encoded. Calls have to be well below unneededFor apart, by one
// goroutine.
func (p *Proxy) Unneeded(now time.Time) (all []handover.Source) {
	if !p.Spares() {
		return nil
	}
	open, pays := p.conns.openConnections(), map[netip.Addr]bool{}
	for _, c := range open {
		switch m := c.pipe.Payoff; {
		case c.kind != kindLink:
		case m == nil: // it encodes whatever that costs
			pays[c.destination.Addr()] = true
		default:
			if f := m.Figures(); f != nil && f.Encodes && !m.Load.Passes() {
				pays[c.destination.Addr()] = true
			}
		}
	}
	for _, c := range open {
		if c.kind == kindAccepted || c.origin == "" {
			continue
		}
		if pays[c.destination.Addr()] || c.paid.IsZero() {
			c.paid = now
		}
		if now.Sub(c.paid) > unneededFor {
			all = append(all, handover.Source{Netns: c.scope.Netns, Address: c.client})
		}
	}
	return all
}

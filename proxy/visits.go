package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/psidecar/psidecar/proxy/link"
)

// Bounds on links between sites. A proxy has one to each address of a job that is not its
// own, and a second one while it is replaced.
const (
	maxVisits       = 1024
	visitsPerSource = 256
)

// visits counts links between sites, by source. all is the sum of sources. The zero value is
// ready for use.
type visits struct {
	mu      sync.Mutex // guards the rest
	all     int
	sources map[netip.Prefix]int // no entry is 0
}

// begin counts a link, and returns false where there are too many.
func (v *visits) begin(source netip.Prefix) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all >= maxVisits || v.sources[source] >= visitsPerSource {
		return false
	}
	if v.sources == nil {
		v.sources = map[netip.Prefix]int{}
	}
	v.all++
	v.sources[source]++
	return true
}

// end uncounts a link.
func (v *visits) end(source netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all--
	if v.sources[source]--; v.sources[source] == 0 {
		delete(v.sources, source)
	}
}

// DialSite connects to the proxy at an address, for letters of [jobs.Jobs]; the other side
// serves the connection with its own Jobs. The caller closes it. It may also be used to learn
// which proxy is at a host, which it notes.
func (p *Proxy) DialSite(ctx context.Context, host netip.Addr) (net.Conn, error) {
	at := netip.AddrPortFrom(host, p.opts.MeshPort)
	// The same rule as for links that carry connections: letters decide where keys are.
	if p.opts.TLS == nil && !p.opts.Insecure && !host.IsLoopback() {
		return nil, fmt.Errorf("a link to %s needs TLS or --insecure", host)
	}
	conn, answer, err := p.links.Dial(ctx, at.String(), &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: at, Destination: at})
	// The mesh port of that address has answered, which is what identities are judged by.
	if err == nil {
		p.identities.noteAnswer(host, identity{answer.Instance, link.KeyOf(conn)})
	}
	return conn, err
}

package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/psidecar/psidecar/proxy/link"
)

// Bounds of links between sites: a proxy has one to each address of a job that
// is not its own, and a second while it is replaced.
const (
	maxVisits       = 1024
	visitsPerSource = 256
)

// visits counts links between sites, by source. The zero value has none. all is the sum
// of sources.
type visits struct {
	mu      sync.Mutex // guards the rest
	all     int
	sources map[netip.Prefix]int // none is 0
}

// begin takes one in, or not.
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

func (v *visits) end(source netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all--
	if v.sources[source]--; v.sources[source] == 0 {
		delete(v.sources, source)
	}
}

// DialSite connects to the proxy at an address for [jobs.Jobs]: the other side
// gives the connection to its own.
func (p *Proxy) DialSite(ctx context.Context, host netip.Addr) (net.Conn, error) {
	at := netip.AddrPortFrom(host, p.opts.MeshPort)
	if p.opts.TLS == nil && !p.opts.Insecure && !host.IsLoopback() {
		return nil, fmt.Errorf("a link to %s needs TLS or --insecure", host)
	}
	conn, answer, err := p.links.Dial(ctx, at.String(), &link.Hello{Instance: p.instance, ID: p.newLinkID(), Client: at, Destination: at})
	if err == nil {
		p.identities.noteAnswer(host, identity{answer.Instance, link.KeyOf(conn)})
	}
	return conn, err
}

package proxy

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
)

// identity tells proxies apart: by the random number that each process chooses, which only
// those learn that it talks to, and by the key of its certificate, if it has one.
type identity struct {
	instance relay.Instance
	key      link.Key
}

// Bounds on the identities that are remembered.
const (
	maxIdentities     = 1 << 16 // hosts
	identitiesPerHost = 4       // a proxy that is replaced has links for a while
	identityLasts     = 10 * time.Minute
	// identityAgain is how long a host whose answer was another one is not asked again.
	identityAgain = 500 * time.Millisecond
	identityRetry = 50 * time.Millisecond
)

// identities remembers which proxies have answered at the mesh ports of hosts. What a proxy
// claims to be is compared with that. The proof is routing: a connection to an address
// arrives at that host, which nobody else can bring about.
type identities struct {
	asking singleflight.Group

	mu    sync.Mutex // guards hosts and what it has
	hosts map[netip.Addr]*resident
}

// resident has the identities that have answered at a host, the latest first; at most
// identitiesPerHost.
type resident struct {
	seen  []sighting
	asked time.Time
}

// sighting is an identity, and when it answered last.
type sighting struct {
	identity
	last time.Time
}

func newIdentities() *identities { return &identities{hosts: map[netip.Addr]*resident{}} }

// noteAnswer notes that a proxy has answered at a host's mesh port.
func (i *identities) noteAnswer(host netip.Addr, id identity) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := i.hosts[host]
	if r == nil {
		if len(i.hosts) >= maxIdentities {
			clear(i.hosts) // they are asked again
		}
		r = &resident{}
		i.hosts[host] = r
	}
	// An identity that is known moves to the front.
	r.seen = slices.DeleteFunc(r.seen, func(s sighting) bool { return s.identity == id })
	r.seen = slices.Insert(r.seen, 0, sighting{id, time.Now()})
	r.seen = r.seen[:min(len(r.seen), identitiesPerHost)]
}

// has reports whether a proxy is the one that answered last at a host's mesh port, or has
// answered there within identityLasts. It also returns when the host was last asked on
// purpose.
func (i *identities) has(host netip.Addr, id identity) (ok bool, asked time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := i.hosts[host]
	if r == nil {
		return false, asked
	}
	for n, s := range r.seen {
		if s.identity == id && (n == 0 || time.Since(s.last) < identityLasts) {
			return true, r.asked
		}
	}
	return false, r.asked
}

// noteAsked notes that a host was asked on purpose.
func (i *identities) noteAsked(host netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r := i.hosts[host]; r != nil {
		r.asked = time.Now()
	}
}

// peerOf is the proxy at the other end of a link, as a [jobs.Peer].
type peerOf struct {
	proxy *Proxy
	identity
}

// peer returns the proxy that has sent a link's hello.
func (p *Proxy) peer(far net.Conn, h *link.Hello) *peerOf {
	return &peerOf{p, identity{h.Instance, link.KeyOf(far)}}
}

// At implements [jobs.Peer]. Where the host has not answered as this proxy yet, it is asked,
// by a link of its own; calls for one host share that. A host that is asked and answers as
// another proxy decides the matter for a while.
func (o *peerOf) At(ctx context.Context, host netip.Addr) error {
	p := o.proxy
	for {
		ok, asked := p.identities.has(host, o.identity)
		if ok {
			return nil
		}
		// It was asked a moment ago, and another proxy answered.
		if time.Since(asked) < identityAgain {
			return reason.Errorf(reason.Forged, "another proxy is at %s", host)
		}
		// DialSite notes the identity that answers.
		_, err, _ := p.identities.asking.Do(host.String(), func() (any, error) {
			conn, err := p.DialSite(ctx, host)
			if err != nil {
				return nil, err
			}
			p.identities.noteAsked(host)
			return nil, conn.Close()
		})
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return reason.Errorf(reason.NoPeer, "no response from %s to verify that it is the proxy there: %w", host, err)
		case <-time.After(identityRetry):
		}
	}
}

package daemon

import (
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// How long an answer is valid: whether a proxy listens at another host.
const (
	absentFor  = 3 * time.Second
	presentFor = time.Minute
	dialFor    = time.Second // how long a connection attempt may take
	mostPeers  = 4096        // hosts that are remembered
)

// peers caches at which hosts a proxy listens at the mesh port. It never blocks its caller.
type peers struct {
	port uint16 // the mesh port; 0: assume one at every host

	mu  sync.Mutex // guards all
	all map[netip.Addr]*peer
}

// peer is what is known of one host.
type peer struct {
	listens, asking bool
	at              time.Time // of the last attempt; zero before the first
}

func newPeers(port uint16) *peers { return &peers{port: port, all: map[netip.Addr]*peer{}} }

// listens reports whether a proxy was listening at a host lately. If the answer is old or
// missing, it starts an attempt in the background, whose result a later call returns.
func (p *peers) listens(at netip.Addr, now time.Time) bool {
	if p.port == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.all[at]
	if h == nil {
		// Forgetting everything costs one attempt for each host that is still of interest.
		if len(p.all) >= mostPeers {
			clear(p.all)
		}
		h = &peer{}
		p.all[at] = h
	}
	holds := absentFor
	if h.listens {
		holds = presentFor
	}
	if !h.asking && now.Sub(h.at) > holds {
		h.asking = true
		go p.ask(at, h)
	}
	return h.listens && now.Sub(h.at) <= holds
}

// ask connects to the mesh port and hangs up, which the proxy there does not count as a failure.
func (p *peers) ask(at netip.Addr, h *peer) {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(at.String(), strconv.Itoa(int(p.port))), dialFor)
	if err == nil {
		c.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h.listens, h.asking, h.at = err == nil, false, time.Now()
}

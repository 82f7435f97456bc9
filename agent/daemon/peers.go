package daemon

import (
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// How long it holds that nobody, or somebody, listens at another host's mesh port.
const (
	absentFor  = 3 * time.Second
	presentFor = time.Minute
	dialFor    = time.Second
	mostPeers  = 4096
)

// peers know at which hosts proxies listen. [peers.listens] does not wait.
type peers struct {
	port uint16

	mu  sync.Mutex // guards all
	all map[netip.Addr]*peer
}

type peer struct {
	listens, asking bool
	at              time.Time // when that was found
}

func newPeers(port uint16) *peers { return &peers{port: port, all: map[netip.Addr]*peer{}} }

// listens reports whether one did lately; it finds out for the next time.
func (p *peers) listens(at netip.Addr, now time.Time) bool {
	if p.port == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.all[at]
	if h == nil {
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

func (p *peers) ask(at netip.Addr, h *peer) {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(at.String(), strconv.Itoa(int(p.port))), dialFor)
	if err == nil {
		c.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h.listens, h.asking, h.at = err == nil, false, time.Now()
}

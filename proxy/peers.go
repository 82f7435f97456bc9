package proxy

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/proxy/reason"
)

// maxPeers bounds how many hosts are remembered.
const maxPeers = 1 << 16

// peers remembers at which hosts there is a proxy and at which there was none
// a moment ago.
type peers struct {
	retry  time.Duration
	file   string    // for the next proxy; empty: none
	told   sync.Once // that the file cannot be written
	log    *slog.Logger
	saving sync.Mutex // the file; before mu
	mu     sync.Mutex // guards hosts
	hosts  map[netip.Addr]peer
}

type peer struct {
	met   bool      // it was there when last tried
	first time.Time // since when it is waited for, of which nothing was known
	away  time.Time // since when it has not been, if it may be back soon
	until time.Time // otherwise: when to try again
	why   string    // and why it failed, in metrics
}

func newPeers(retry time.Duration) *peers {
	return &peers{retry: retry, hosts: map[netip.Addr]peer{}}
}

// try reports whether the host's proxy should be tried, and otherwise why it
// failed when it was.
func (p *peers) try(host netip.Addr) (try bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.hosts[host]
	return !ok || h.met || !time.Now().Before(h.until), h.why
}

// known reports whether the host had a proxy when last tried.
func (p *peers) known(host netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hosts[host].met
}

// mayReturn reports whether the proxy of a host could not be linked to, with
// this error, because it is being replaced: it says that it is about to go, or
// was there before and has gone, and has not been away for longer than grace.
func (p *peers) mayReturn(host netip.Addr, err error, grace time.Duration) bool {
	stopping := err != nil && reason.Of(err) == reason.Stopping
	if !stopping && !errors.Is(err, syscall.ECONNREFUSED) && !reason.IsReset(err) && !errors.Is(err, io.EOF) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[host]
	switch {
	case !h.met && !stopping:
		return false
	case h.away.IsZero():
		h.met = true
		h.away = time.Now()
		p.putPeer(host, h)
	}
	return time.Since(h.away) < grace
}

// forgotten is after what time a host without a proxy is one of which nothing is
// known: pods come and go, their addresses stay.
const forgotten = time.Minute

// mayAppear reports whether the proxy of a host could not be linked to, with
// this error, because it has not opened its mesh port yet: nothing was known of
// the host until a moment ago, no longer than patience. A pod's port is opened
// when the agent has found the job in it.
func (p *peers) mayAppear(host netip.Addr, err error, patience time.Duration) bool {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, h := time.Now(), p.hosts[host]
	switch {
	case h.met || !h.until.IsZero() && now.Sub(h.until) < forgotten:
		return false
	case h.first.IsZero():
		h = peer{first: now}
		p.putPeer(host, h)
	}
	return now.Sub(h.first) < patience
}

// met notes that a host has a proxy.
func (p *peers) met(host netip.Addr) {
	if before := p.set(host, peer{met: true}); !before.met {
		p.save()
	}
}

// missed notes that a link failed, and reports whether that is news.
func (p *peers) missed(host netip.Addr, why string) (news bool) {
	before := p.set(host, peer{until: time.Now().Add(p.retry), why: why})
	if before.met {
		p.save()
	}
	return why != before.why
}

// set returns what was known before.
func (p *peers) set(host netip.Addr, h peer) (before peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = p.hosts[host]
	p.putPeer(host, h)
	return before
}

func (p *peers) putPeer(host netip.Addr, h peer) {
	if _, ok := p.hosts[host]; !ok && len(p.hosts) >= maxPeers {
		clear(p.hosts) // all are tried again, which costs no more than time
	}
	p.hosts[host] = h
}

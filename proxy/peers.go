package proxy

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
)

// maxPeers bounds the hosts that are remembered.
const maxPeers = 1 << 16

// peers remembers which hosts have a proxy and which had none a moment ago, so that not every
// connection waits for a host without one. A host is in one of these states:
//
//	unknown    not in hosts: links are tried, and waited for while mayAppear
//	met        it had a proxy: links are tried, and waited for while mayReturn
//	missed     it had none: direct connections until the time is over
//
//	unknown ──link──► met ──failure──► missed ──retry over, link──► met
//
// A connection that was made directly stays so, while the cost of waiting is bounded: hence
// both waits.
type peers struct {
	retry time.Duration // how long a host without a proxy is not tried
	file  string        // for the next proxy; empty: none
	told  sync.Once     // that the file cannot be written
	log   *slog.Logger

	mu    sync.Mutex // guards hosts, unsaved and saved; not held while the file is written
	hosts map[netip.Addr]peer
	// unsaved means that hosts has more than the file. saved is closed when the goroutine that
	// writes the file has ended; nil while there is none.
	unsaved bool
	saved   chan struct{}
}

// peer is what is known of a host: that it has a proxy (met), that it may get one (first), or
// that it has none (until).
type peer struct {
	met   bool      // it had a proxy when last tried
	seen  time.Time // when that answered last
	first time.Time // since when a host is waited for of which nothing was known
	away  time.Time // since when it has not answered, although it may be back soon
	until time.Time // when to try again
	why   string    // why a link failed, as counted
}

func newPeers(retry time.Duration) *peers {
	return &peers{retry: retry, hosts: map[netip.Addr]peer{}}
}

// try reports whether to try a link to the host's proxy; if not, why is the reason of the
// last failure.
func (p *peers) try(host netip.Addr) (try bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.hosts[host]
	return !ok || h.met || !time.Now().Before(h.until), h.why
}

// known reports whether the host had a proxy when it was last tried.
func (p *peers) known(host netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hosts[host].met
}

// mayReturn reports whether a link failed, with err, because the host's proxy is being
// replaced: it answers that it is about to end, or it was there and refuses connections now,
// and has not been away for longer than grace.
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
	// A proxy that announces its end is taken for one that was there, even if this one had
	// not met it.
	case h.away.IsZero():
		h.met = true
		h.away = time.Now()
		p.putPeer(host, h)
	}
	return time.Since(h.away) < grace
}

// forgotten is the time after which a host without a proxy counts as unknown again: pods come
// and go, and their addresses are reused.
const forgotten = time.Minute

// mayAppear reports whether a link failed, with err, because the host's proxy has not opened
// its mesh port yet: nothing was known of the host until a moment ago, at most patience. In a
// pod the port opens once the agent has found the job.
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
	if before := p.set(host, peer{met: true, seen: time.Now()}); !before.met {
		p.save()
	}
}

// slowLasts is how long after its last answer a proxy that does not answer in time counts as slow,
// rather than gone.
const slowLasts = 5 * time.Minute

// slow reports whether a link failed, with err, only because a proxy that has answered lately did not
// do so in time, or had no room for another handshake.
func (p *peers) slow(host netip.Addr, err error) bool {
	var timeout interface{ Timeout() bool }
	if reason.Of(err) != reason.HelloTimeout && !reason.IsReset(err) && !(errors.As(err, &timeout) && timeout.Timeout()) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[host]
	return h.met && time.Since(h.seen) < slowLasts
}

// missed notes that a link has failed, and reports whether that is news.
func (p *peers) missed(host netip.Addr, why string) (news bool) {
	before := p.set(host, peer{until: time.Now().Add(p.retry), why: why})
	if before.met {
		p.save()
	}
	return why != before.why
}

// set replaces what is known of a host, and returns what was known before.
func (p *peers) set(host netip.Addr, h peer) (before peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = p.hosts[host]
	p.putPeer(host, h)
	return before
}

// putPeer stores what is known of a host; the caller holds mu.
func (p *peers) putPeer(host netip.Addr, h peer) {
	if _, ok := p.hosts[host]; !ok && len(p.hosts) >= maxPeers {
		clear(p.hosts) // all are tried again, which costs no more than time
	}
	p.hosts[host] = h
}

package daemon

import (
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
)

// usage is what the kernel has counted of a connection up to a time; see [discover.Connection].
type usage struct {
	at    time.Time
	acked uint64
	busy  time.Duration
	rtt   time.Duration // smoothed
	rate  uint64
}

// Bounds of [usage.limits].
const (
	usageEvery = time.Second // distance of two usages
	// A job is slowed by a link that is busy for busyShare of the time.
	busyShare = 0.2
	// A link that carries fastLink bytes per second is too fast for two proxies to save time.
	fastLink = 25e6
	// The last segment of a message is acknowledged up to 40 ms late (TCP_DELACK_MIN), so only a
	// longer round trip says that segments wait for the link.
	slowRTT = 50 * time.Millisecond
	// What sends fewer bytes per second waits for the round trip, not for the link. Connections share
	// a link, so it is far below the slowest link's rate.
	leastRate = 8e3
	// A link is slow after steadyFor usages in which a connection waited for it more often than
	// not, and fast after as many in which it did not. slowFor is how long it stays so when the
	// connection is gone, for the others between the same hosts.
	steadyFor = 3
	slowFor   = 10 * time.Second
)

// limits reports whether a connection has waited for its link since an earlier usage. With b the
// time in which bytes were on their way, n the bytes that were acknowledged, t all of the time, r
// the rate at which bursts arrive and s the round trip:
//
//	b >= busyShare * t  and  leastRate * t <= n < fastLink * b  and  (r < fastLink or s >= slowRTT)
//
// The last term tells a slow link from late acknowledgements: of a last segment, or of a host whose
// processors are busy.
func (u usage) limits(before usage) bool {
	b, t, n := (u.busy - before.busy).Seconds(), u.at.Sub(before.at).Seconds(), float64(u.acked-before.acked)
	return b >= busyShare*t && n >= leastRate*t && n < fastLink*b && (u.rate < fastLink || u.rtt >= slowRTT)
}

// A bottleneck tells whether a connection's link is what the job waits for. The zero value says no.
type bottleneck struct {
	last  usage
	count int // from 0 to steadyFor
	is    bool
}

// addUsage adds a usage.
func (b *bottleneck) addUsage(u usage) {
	if !b.last.at.IsZero() {
		if u.limits(b.last) {
			b.count = min(b.count+1, steadyFor)
		} else {
			b.count = max(b.count-1, 0)
		}
		b.is = b.count == steadyFor || b.is && b.count > 0
	}
	b.last = u
}

// hostPair is the addresses of two hosts, or pods: the ends of a link.
type hostPair struct{ local, peer netip.Addr }

// watch adds what the kernel has counted of a direct connection, where it is time, and notes whether
// its link is slow.
func (a *Adopter) watch(sockets map[string]map[discover.Ends]discover.Connection, netns string, d Connection, now time.Time) {
	b := a.waits[d.Cookie]
	if b == nil && len(a.waits) < mostDone {
		b = &bottleneck{}
		a.waits[d.Cookie] = b
	}
	if b == nil || d.Local.Addr() == d.Peer.Addr() {
		return
	}
	if a.sampled == now {
		if s, known := a.socket(sockets, netns, d); known {
			b.addUsage(usage{now, s.Acked, s.Busy, s.RTT, s.Rate})
		}
	}
	if b.is {
		a.slow[hostPair{d.Local.Addr(), d.Peer.Addr()}] = now
	}
}

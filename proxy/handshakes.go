package proxy

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/relay"
)

// Bounds of connections at mesh ports whose peer has not said hello yet. A
// proxy says it within milliseconds of its connect.
const (
	maxHandshakes       = 512
	leastHandshakes     = 8
	handshakesPerSource = 64
)

// affordableHandshakes returns how many handshakes the limit of open files
// allows at a time: an eighth of it.
func affordableHandshakes() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return maxHandshakes
	}
	return int(min(max(limit.Cur/8, leastHandshakes), maxHandshakes))
}

// handshakes are the connections at mesh ports whose peer has not said hello
// yet. They take no slot of [admission], and of these few bounds: where a
// source has too many, its oldest is reset for its newest; where all together
// are too many, the oldest of the source that has most. So silent connections
// keep nobody out, not even those of their own source: who says hello at once
// is never the oldest for long.
//
// Invariant: size is the number of entries in all lists; no list is empty.
type handshakes struct {
	most, each int

	mu      sync.Mutex // guards the rest
	size    int
	sources map[netip.Prefix][]net.Conn // oldest first
}

func newHandshakes(most int) *handshakes {
	return &handshakes{most: most, each: min(handshakesPerSource, max(1, most/2)), sources: map[netip.Prefix][]net.Conn{}}
}

// sourceOf is what connections are counted by: an IPv4 address, or the network
// that an IPv6 host may choose its addresses from.
func sourceOf(a netip.Addr) netip.Prefix {
	bits := 64
	if a = a.Unmap(); a.Is4() {
		bits = 32
	}
	p, _ := a.WithZone("").Prefix(bits) // bits fit the address
	return p
}

// begin takes a connection in, and resets another where there are too many.
// The caller calls the function returned when the handshake has ended; it
// reports whether that was because of others.
func (h *handshakes) begin(conn net.Conn, from netip.Addr) (end func() (reset bool)) {
	source := sourceOf(from)
	h.mu.Lock()
	victim := h.makeRoom(source)
	h.sources[source] = append(h.sources[source], conn)
	h.size++
	h.mu.Unlock()
	if victim != nil {
		relay.Reset(victim)
	}
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !h.remove(source, conn)
	}
}

// makeRoom takes out the connection that must go for one more of the source.
func (h *handshakes) makeRoom(source netip.Prefix) (victim net.Conn) {
	var whose netip.Prefix
	switch {
	case len(h.sources[source]) >= h.each:
		whose = source
	case h.size >= h.most:
		for s, all := range h.sources {
			if len(all) > len(h.sources[whose]) {
				whose = s
			}
		}
	default:
		return nil
	}
	victim = h.sources[whose][0]
	h.remove(whose, victim)
	return victim
}

// remove takes a connection out, if it is still in.
func (h *handshakes) remove(source netip.Prefix, conn net.Conn) bool {
	all := h.sources[source]
	for i, c := range all {
		if c != conn {
			continue
		}
		h.size--
		if len(all) == 1 {
			delete(h.sources, source)
		} else {
			h.sources[source] = slices.Delete(all, i, i+1)
		}
		return true
	}
	return false
}

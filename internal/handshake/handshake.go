// Package handshake bounds connections whose peer has not completed its handshake.
// Whoever reaches a port can open as many of them as it likes.
//
// In come connections as they are accepted, and word of when each has said
// enough; those that make room for others are reset. The mesh port of package
// proxy and the planner's ports and all pages have a [Set] each.
package handshake

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/relay"
)

// least is how many handshakes there may be at a time whatever the limits.
const least = 8

// Affordable returns how many handshakes the limit of open files allows at a time:
// an eighth of it, and at most most.
func Affordable(most int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return most
	}
	return int(min(max(limit.Cur/8, least), uint64(most)))
}

// A Set is the connections at a port whose peer has not said enough yet. Where a
// source has too many, its oldest is reset for its newest; where all together are
// too many, the oldest of the source that has most. So silent connections keep
// nobody out, not even those of their own source: a peer that speaks at once is
// never the oldest for long.
//
// Invariant: size is the number of entries in all lists; no list is empty.
type Set struct {
	most, each int

	mu      sync.Mutex // guards the rest
	size    int
	dropped uint64
	sources map[netip.Prefix][]net.Conn // oldest first
}

// New returns a Set of at most most connections, each of one source.
func New(most, each int) *Set {
	return &Set{most: most, each: min(each, max(1, most/2)), sources: map[netip.Prefix][]net.Conn{}}
}

// Most is how many connections there are at most.
func (h *Set) Most() int { return h.most }

// Size is how many connections there are.
func (h *Set) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// Dropped is how many connections were reset for others.
func (h *Set) Dropped() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dropped
}

// SourceOf is what connections are counted by: an IPv4 address, or the network
// that an IPv6 host may choose its addresses from.
func SourceOf(a netip.Addr) netip.Prefix {
	bits := 64
	if a = a.Unmap(); a.Is4() {
		bits = 32
	}
	p, _ := a.WithZone("").Prefix(bits) // bits fit the address
	return p
}

// Begin takes a connection in, and resets another where there are too many.
// The caller calls the function returned when the handshake has ended; it
// reports whether that was because of others.
func (h *Set) Begin(conn net.Conn, from netip.Addr) (end func() (reset bool)) {
	source := SourceOf(from)
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
func (h *Set) makeRoom(source netip.Prefix) (victim net.Conn) {
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
	h.dropped++
	return victim
}

// remove takes a connection out, if it is still in.
func (h *Set) remove(source netip.Prefix, conn net.Conn) bool {
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

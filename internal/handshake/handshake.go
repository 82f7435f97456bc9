// Package handshake bounds connections whose peer has not completed its handshake. Anyone who
// reaches a port can open any number of them, and each costs a descriptor.
//
// A [Set] is told of each connection when it is accepted, and when it has said enough. If there
// are too many, one is reset to make room. The mesh port of package proxy, the planner's ports
// and all pages have a Set each; [Listener] and [BoundHTTP] connect it to gRPC and HTTP
// servers.
package handshake

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/sock"
)

// least is the smallest number of handshakes allowed, whatever the limits.
const least = 8

// Affordable returns how many handshakes the limit on open files allows at a time: an eighth of
// it, but at most most.
func Affordable(most int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return most
	}
	return int(min(max(limit.Cur/8, least), uint64(most)))
}

// A Set is the connections at a port whose peer has not said enough yet. If a source has too
// many, its oldest is reset for its newest; if there are too many in total, the oldest one of
// the source with the most. So silent connections keep nobody out, not even others of their own
// source: a peer that speaks at once is never the oldest for long. It is safe for concurrent
// use.
//
// Invariant: size is the number of entries in all lists; no list is empty.
type Set struct {
	most, each int // bounds in total, and for each source

	mu      sync.Mutex // guards the rest
	size    int
	dropped uint64
	sources map[netip.Prefix][]net.Conn // oldest first
}

// New returns a Set for at most most connections, and at most each from one source. One source
// never gets more than half.
func New(most, each int) *Set {
	return &Set{most: most, each: min(each, max(1, most/2)), sources: map[netip.Prefix][]net.Conn{}}
}

// Most returns the bound in total.
func (h *Set) Most() int { return h.most }

// Size returns the number of connections.
func (h *Set) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// Dropped returns how many connections were reset to make room.
func (h *Set) Dropped() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dropped
}

// SourceOf returns what connections are counted by: an IPv4 address, or the /64 network in
// which an IPv6 host can choose its address.
func SourceOf(a netip.Addr) netip.Prefix {
	bits := 64
	if a = a.Unmap(); a.Is4() {
		bits = 32
	}
	p, _ := a.WithZone("").Prefix(bits) // bits fit the address
	return p
}

// Begin adds a connection, and resets another one if there are too many. The caller must call
// end when the handshake has ended, in any way; it reports whether the connection was reset to
// make room.
func (h *Set) Begin(conn net.Conn, from netip.Addr) (end func() (reset bool)) {
	source := SourceOf(from)
	h.mu.Lock()
	victim := h.makeRoom(source)
	h.sources[source] = append(h.sources[source], conn)
	h.size++
	h.mu.Unlock()
	if victim != nil {
		sock.Reset(victim)
	}
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !h.remove(source, conn)
	}
}

// makeRoom removes and returns the connection that must go for one more of a source; nil if
// there is room. The caller holds h.mu and resets the victim after releasing it.
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

// remove removes a connection and reports whether it was there. The caller holds h.mu.
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

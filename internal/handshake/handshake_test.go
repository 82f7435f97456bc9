package handshake

import (
	"net"
	"net/netip"
	"testing"
)

// Handshakes are bounded by source and in all, and the newest is always taken.
func TestHandshakesMakeRoom(t *testing.T) {
	h := New(8, 64)
	open := func(from string) (conn net.Conn, end func() bool) {
		conn, other := net.Pipe()
		t.Cleanup(func() { other.Close(); conn.Close() })
		return conn, h.Begin(conn, netip.MustParseAddr(from))
	}
	_, first := open("198.18.0.1")
	for range h.each {
		open("198.18.0.1")
	}
	if !first() {
		t.Error("the oldest of a source with too many was not reset")
	}
	_, alone := open("198.18.0.2")
	for i := h.size; i < h.most; i++ {
		open(netip.AddrFrom4([4]byte{198, 18, 1, byte(i)}).String())
	}
	for i := range 100 {
		from := netip.AddrFrom4([4]byte{198, 19, byte(i), 1})
		_, mine := open(from.String())
		if mine() {
			t.Fatalf("the newest was reset, after %d", i)
		}
	}
	if n := len(h.sources[SourceOf(netip.MustParseAddr("198.18.0.1"))]); n != h.each-1 {
		t.Errorf("the source with most has %d left, one of %d should have made room", n, h.each)
	}
	if alone() {
		t.Error("the only one of its source was reset for others")
	}
	// An IPv6 host has as many addresses as it likes.
	_, six := open("2001:db8::1")
	for range h.each {
		open("2001:db8::2")
	}
	if !six() {
		t.Error("addresses of one IPv6 network count as several sources")
	}
	n := 0
	for _, all := range h.sources {
		n += len(all)
	}
	if n != h.size || n > h.most || h.Dropped() == 0 {
		t.Errorf("%d connections in lists, %d counted, at most %d", n, h.size, h.most)
	}
}

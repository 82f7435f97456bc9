package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/reason"
)

// Silent connections to a mesh port take no slot from those that say hello, of
// their own source or another: many more of them than there are slots.
func TestSilentConnectionsTakeNoSlots(t *testing.T) {
	mesh, job := listen(t, serverHost), newServer(t)
	const slots = 4
	p, _ := start(t, Options{MeshPort: addrPort(mesh.Addr()).Port() + 1, MaxConnections: slots, HelloTimeout: time.Hour}, nil, mesh)
	for range 500 {
		c, err := net.Dial("tcp", mesh.Addr().String())
		if errors.Is(err, syscall.ECONNRESET) {
			continue // it has made room for others before this side has looked
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	p.greeting.mu.Lock()
	if n, most := p.greeting.size, handshakesPerSource; n > most {
		t.Errorf("%d connections of one source are waited for, at most %d should be", n, most)
	}
	p.greeting.mu.Unlock()
	for _, from := range []string{workerHost, "127.0.0.9"} {
		local := net.TCPAddr{IP: net.ParseIP(from)}
		d := link.Dialer{Net: &net.Dialer{LocalAddr: &local}, ConnectTimeout: time.Minute, AnswerTimeout: time.Minute}
		for range slots / 2 {
			c, _, err := d.Dial(context.Background(), mesh.Addr().String(), &link.Hello{Destination: job.addr()})
			if err != nil {
				t.Fatalf("a link from %s beside silent connections: %v", from, err)
			}
			t.Cleanup(func() { c.Close() })
			job.next(t)
		}
	}
	eventually(t, "those that made room are counted", func() bool { return p.count(reason.Silent) >= 500-handshakesPerSource })
}

// Handshakes are bounded by source and in all, and the newest is always taken.
func TestHandshakesMakeRoom(t *testing.T) {
	h := newHandshakes(8)
	open := func(from string) (conn net.Conn, end func() bool) {
		conn, other := net.Pipe()
		t.Cleanup(func() { other.Close(); conn.Close() })
		return conn, h.begin(conn, netip.MustParseAddr(from))
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
	if n := len(h.sources[sourceOf(netip.MustParseAddr("198.18.0.1"))]); n != h.each-1 {
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
	if n != h.size || n > h.most {
		t.Errorf("%d connections in lists, %d counted, at most %d", n, h.size, h.most)
	}
}

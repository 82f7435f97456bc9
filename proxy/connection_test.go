package proxy

import (
	"net"
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/proxy/relay"
)

// What an agent asks of a socket that has closed since is answered as while it
// was open; of the last ones alone.
func TestSocketsThatClosed(t *testing.T) {
	l := listen(t, workerHost)
	p := &Proxy{conns: newRegister()}
	connect := func() (c *connection, cookie uint64, local, peer netip.AddrPort) {
		dialled, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dialled.Close(); accepted.Close() })
		cookie, ok := socketCookie(dialled)
		if !ok || cookie == 0 {
			t.Fatal("the kernel tells no cookie")
		}
		return &connection{pipe: relay.Conn{Job: accepted, Far: dialled}}, cookie, addrPort(dialled.LocalAddr()), addrPort(dialled.RemoteAddr())
	}
	c, cookie, local, peer := connect()
	other, otherCookie, _, _ := connect()
	p.conns.addConnection(c)
	expect := func(what string, cookie uint64, local, peer netip.AddrPort, want bool) {
		t.Helper()
		if got := p.Owns(cookie, local, peer); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("open, by its cookie", cookie, netip.AddrPort{}, netip.AddrPort{}, true)
	expect("open, by its ends", 0, local, peer, true)
	expect("another's", otherCookie, peer, peer, false)
	p.conns.remove(c)
	expect("closed, by its cookie", cookie, netip.AddrPort{}, netip.AddrPort{}, true)
	expect("closed, by its ends, which another may have by now", 0, local, peer, false)
	p.conns.addConnection(other)
	for i := range uint64(2 * maxClosed) {
		p.conns.remove(&connection{id: 1 << 40, cookies: []uint64{1<<62 + i}, pipe: relay.Conn{Job: other.pipe.Job, Far: other.pipe.Far}})
	}
	expect("closed long ago", cookie, netip.AddrPort{}, netip.AddrPort{}, false)
	expect("still open", otherCookie, netip.AddrPort{}, netip.AddrPort{}, true)
	if n := len(p.conns.cookies); n > 2+maxClosed {
		t.Errorf("%d cookies are kept", n)
	}
}

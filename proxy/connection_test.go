package proxy

import (
	"net"
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// What an agent asks of a socket that has closed since is answered as while it
// was open; of the last ones alone.
func TestSocketsThatClosed(t *testing.T) {
	l := listen(t, workerHost)
	p := &Proxy{conns: newRegister()}
	connect := func() (c *connection, cookie uint64, local, peer netip.AddrPort) {
		dialled := require.Value(net.Dial("tcp", l.Addr().String()))(t)
		accepted := require.Value(l.Accept())(t)
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

// What a link within a host carries is no saving between hosts, neither while it is open nor after.
func TestCarriedIsBetweenHosts(t *testing.T) {
	far := newTwoHosts(t, nil)
	client, server := far.dialLinked(t)
	echo(t, client, server)
	require.Eventually(t, "bytes to another host count", func() bool { job, _ := far.worker.Carried(); return job > 0 })

	job, in, mesh := newServer(t), listen(t, workerHost), listen(t, serverHost)
	p, _ := start(t, Options{MeshPort: addrPort(mesh.Addr()).Port(), Codecs: []relay.Codec{compact.New(compact.DefaultLimits)}},
		[]Listener{{Listener: in, Destination: Fixed(job.addr())}}, mesh)
	near := &twoHosts{in: in}
	client, server = near.dial(t), job.next(t)
	echo(t, client, server)
	within := func() uint64 { return p.conns.sums().within.toFar.In }
	require.Eventually(t, "bytes within the host are carried", func() bool { return within() > 0 })
	if n, _ := p.Carried(); n != 0 {
		t.Errorf("%d bytes within a host count as carried to another", n)
	}
	client.Close()
	server.Close()
	require.Eventually(t, "the connection has ended", func() bool { return len(p.conns.openConnections()) == 0 })
	if n, _ := p.Carried(); n != 0 || within() == 0 {
		t.Errorf("after the end %d bytes of %d within a host count as carried to another", n, within())
	}
}

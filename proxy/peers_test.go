package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A proxy whose mesh port opens a moment after the first connection to its host
// is waited for, and that is counted.
func TestMeshPortThatOpensLate(t *testing.T) {
	in, job, late := listen(t, workerHost), newServer(t), listen(t, serverHost)
	mesh := addrPort(late.Addr()).Port()
	late.Close()
	p, _ := start(t, Options{MeshPort: mesh, PeerPatience: time.Minute}, []Listener{{Listener: in, Destination: Fixed(job.addr())}})
	first, err := net.Dial("tcp", in.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	eventually(t, "the host is waited for", func() bool {
		p.peers.mu.Lock()
		defer p.peers.mu.Unlock()
		return !p.peers.hosts[job.addr().Addr()].first.IsZero()
	})
	l, err := net.Listen("tcp", late.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	start(t, Options{MeshPort: mesh}, nil, l)
	echo(t, first.(*net.TCPConn), job.next(t))
	s := p.conns.sums()
	if s.total[kindLink] != 1 || s.total[kindDirect] != 0 || s.waits[true] != 1 || s.waits[false] != 0 {
		t.Errorf("%v connections, waited for %v", s.total, s.waits)
	}
}

// A host is waited for once: for as long as patience lasts since the first
// connection to it, and again only when nothing has been heard of it for long.
func TestMayAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience, retry = time.Second, 10 * time.Second
		host, refused := netip.MustParseAddr("198.18.0.1"), fmt.Errorf("dialing: %w", syscall.ECONNREFUSED)
		p := newPeers(retry)
		expect := func(what string, err error, want bool) {
			t.Helper()
			if p.mayAppear(host, err, patience) != want {
				t.Errorf("%s: waited for %v, want %v", what, !want, want)
			}
		}
		expect("a link", nil, false)
		expect("silence", errors.New("timeout"), false)
		expect("the first connection", refused, true)
		time.Sleep(600 * time.Millisecond)
		expect("a second one", refused, true)
		time.Sleep(400 * time.Millisecond)
		expect("after a second", refused, false)
		p.missed(host, noProxy)
		expect("given up", refused, false)
		time.Sleep(retry)
		if try, _ := p.try(host); !try {
			t.Error("the host is not tried again")
		}
		expect("tried again", refused, false)
		time.Sleep(forgotten)
		expect("forgotten", refused, true)
		p.met(host)
		expect("met, and gone", refused, false)
	})
}

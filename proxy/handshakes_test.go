package proxy

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/test/require"
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
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
	}
	if n, most := p.greeting.Size(), handshakesPerSource; n > most {
		t.Errorf("%d connections of one source are waited for, at most %d should be", n, most)
	}
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
	require.Eventually(t, "those that made room are counted", func() bool { return p.count(reason.Silent) >= 500-handshakesPerSource })
}

// A scope that connects to many places of a host whose proxy is slow waits for itself: connections of
// another scope are made beside it.
func TestScopeThatDialsALotWaitsAlone(t *testing.T) {
	slow, job := listen(t, serverHost), newServer(t)
	var dialed atomic.Int64
	go func() {
		for {
			c, err := slow.Accept()
			if err != nil {
				return
			}
			dialed.Add(1)
			t.Cleanup(func() { c.Close() })
		}
	}()
	greedy, other := listen(t, workerHost), listen(t, workerHost)
	start(t, Options{MeshPort: addrPort(slow.Addr()).Port(), HelloTimeout: time.Hour}, []Listener{
		{Listener: greedy, Destination: Fixed(job.addr()), Scope: jobs.Scope{Cgroup: 1}}, {Listener: other, Destination: Fixed(job.addr()), Scope: jobs.Scope{Cgroup: 2}},
	})
	connect := func(to net.Listener, n int) {
		for range n {
			c, err := net.Dial("tcp", to.Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
		}
	}
	connect(greedy, 2*handshakesPerSource)
	require.Eventually(t, "the scope has its share", func() bool { return dialed.Load() >= dialingOfScope })
	connect(other, 1)
	require.Eventually(t, "the other is dialed for", func() bool { return dialed.Load() > dialingOfScope })
	if n := dialed.Load(); n != dialingOfScope+1 {
		t.Errorf("%d connections are being made, want %d and one", n, dialingOfScope)
	}
}

// A cgroup gets all but an eighth of a proxy's connections if there is another one, which then has
// room. The agent learns of it before.
func TestConnectionsByScope(t *testing.T) {
	const most = 16
	job := newServer(t)
	greedy, other := listen(t, workerHost), listen(t, workerHost)
	p, _ := start(t, Options{MaxConnections: most}, []Listener{
		{Listener: greedy, Destination: Fixed(job.addr()), Scope: jobs.Scope{Cgroup: 1}}, {Listener: other, Destination: Fixed(job.addr()), Scope: jobs.Scope{Cgroup: 2}},
	})
	dial := func(to net.Listener) *net.TCPConn {
		c := require.Value(net.Dial("tcp", to.Addr().String()))(t)
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	var open []*net.TCPConn
	for n := 1; n <= most-most/8; n++ {
		c, process := dial(greedy), job.next(t)
		echo(t, c, process)
		if open = append(open, c, process); (p.Crowded() == 1) != (n >= most-most/4) {
			t.Errorf("with %d connections, crowded: %d", n, p.Crowded())
		}
	}
	checkRefused(t, greedy.Addr())
	echo(t, dial(other), job.next(t))
	for _, c := range open[:2*5] {
		c.Close()
	}
	require.Eventually(t, "it has less than its share again", func() bool { return p.Crowded() == 0 })
	echo(t, dial(greedy), job.next(t))
}

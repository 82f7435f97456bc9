package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWithoutProxyAtTheDestination(t *testing.T) {
	in, job := listen(t, workerHost), newServer(t)
	nobody := listen(t, serverHost)
	port := addrPort(nobody.Addr()).Port()
	nobody.Close()
	p, _ := start(t, Options{MeshPort: port, Retry: time.Hour}, []Listener{{Listener: in, Destination: Fixed(job.addr())}})
	for range 3 {
		c := require.Value(net.Dial("tcp", in.Addr().String()))(t)
		echo(t, c.(*net.TCPConn), job.next(t))
		c.Close()
	}
	if n := p.conns.sums().total[kindDirect]; n != 3 {
		t.Errorf("%d direct connections, want 3", n)
	}
	if again, why := p.peers.try(job.addr().Addr()); again || why != noProxy {
		t.Errorf("the host without a proxy (%s) would be tried again at once", why)
	}
	if n := p.conns.sums().past[noProxy]; n != 3 {
		t.Errorf("%d connections are counted as past the mesh, want 3", n)
	}
}

// A host that takes connections at the mesh port but is no proxy does not hold
// the job up for ever, and is tried again.
func TestSilentPeer(t *testing.T) {
	in, job, silent := listen(t, workerHost), newServer(t), newServer(t)
	p, _ := start(t, Options{MeshPort: silent.addr().Port(), Retry: time.Millisecond, DialTimeout: 50 * time.Millisecond, HelloTimeout: 50 * time.Millisecond},
		[]Listener{{Listener: in, Destination: Fixed(job.addr())}})
	c := require.Value(net.Dial("tcp", in.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	echo(t, c.(*net.TCPConn), job.next(t))
	if n := p.count(reason.HelloTimeout); n != 1 {
		t.Errorf("%d time-outs counted, want 1", n)
	}
	require.Eventually(t, "the host is tried again", func() bool { again, _ := p.peers.try(job.addr().Addr()); return again })
}

// With TLS nobody can bring about a plain connection by keeping the other proxy busy: one that has
// answered lately is waited for, and then the connection fails. A proxy that is gone is no matter.
func TestSlowPeerIsNotBypassed(t *testing.T) {
	tls := issued(t)
	for name, c := range map[string]struct{ slow, lately, plain bool }{
		"slow, answered lately": {true, true, false}, "slow, answered long ago": {true, false, true}, "gone": {false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			in, job, silent := listen(t, workerHost), newServer(t), newServer(t)
			p, _ := start(t, Options{MeshPort: silent.addr().Port(), DialTimeout: 50 * time.Millisecond, HelloTimeout: 50 * time.Millisecond, TLS: tls},
				[]Listener{{Listener: in, Destination: Fixed(job.addr())}})
			if !c.slow {
				silent.Close()
			}
			seen := time.Now()
			if !c.lately {
				seen = seen.Add(-slowLasts)
			}
			p.peers.set(job.addr().Addr(), peer{met: true, seen: seen})
			conn := require.Value(net.Dial("tcp", in.Addr().String()))(t)
			t.Cleanup(func() { conn.Close() })
			if c.plain {
				echo(t, conn.(*net.TCPConn), job.next(t))
				return
			}
			conn.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the process got %d bytes, %v", n, err)
			}
			if n := p.count(reason.NoPeer); n != 1 {
				t.Errorf("%d connections are counted as refused, want 1", n)
			}
		})
	}
}

// A proxy that comes up after its host was found without one is found.
func TestPeerIsTriedAgain(t *testing.T) {
	in, job, late := listen(t, workerHost), newServer(t), listen(t, serverHost)
	mesh := addrPort(late.Addr()).Port()
	late.Close()
	p, _ := start(t, Options{MeshPort: mesh, Retry: time.Millisecond}, []Listener{{Listener: in, Destination: Fixed(job.addr())}})
	dial := func() *net.TCPConn {
		c := require.Value(net.Dial("tcp", in.Addr().String()))(t)
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	echo(t, dial(), job.next(t))
	if sums := p.conns.sums(); sums.total[kindDirect] != 1 {
		t.Errorf("without a proxy there are %v connections, want a direct one", sums.total)
	}
	l := require.Value(net.Listen("tcp", late.Addr().String()))(t)
	start(t, Options{MeshPort: mesh}, nil, l)
	require.Eventually(t, "the host is tried again", func() bool { again, _ := p.peers.try(job.addr().Addr()); return again })
	echo(t, dial(), job.next(t))
	if n := p.conns.sums().total[kindLink]; n != 1 {
		t.Errorf("%d connections over links, want 1", n)
	}
}

func TestNobodyAtTheDestination(t *testing.T) {
	for name, mesh := range map[string]bool{"over a link": true, "directly": false} {
		t.Run(name, func(t *testing.T) {
			h := newTwoHosts(t, func(worker, _ *Options) {
				if !mesh {
					worker.MeshPort = 0
				}
			})
			h.job.Close()
			h.dialRefused(t)
			require.Eventually(t, "counted as unreachable", func() bool { return h.worker.count(reason.Unreachable) == 1 })
		})
	}
}

func TestMeshOnlyRefusesToGoPastTheMesh(t *testing.T) {
	h := newTwoHosts(t, func(worker, _ *Options) { worker.MeshOnly, worker.MeshPort = true, 1 })
	h.dialRefused(t)
	require.Eventually(t, "counted", func() bool { return h.worker.count(reason.NoPeer) == 1 })
}

// A link can only ask for destinations at the address where it arrived, or for
// allowed ones.
func TestForeignDestinationsAreRefused(t *testing.T) {
	elsewhere := listen(t, "127.0.0.3")
	for name, allow := range map[string][]netip.Prefix{"refused": nil, "allowed": {netip.MustParsePrefix("127.0.0.3/32")}} {
		mesh := listen(t, serverHost)
		p, _ := start(t, Options{MeshPort: 1, Allow: allow}, nil, mesh)
		d := link.Dialer{Net: &net.Dialer{}, ConnectTimeout: time.Second, AnswerTimeout: 5 * time.Second}
		c, _, err := d.Dial(context.Background(), mesh.Addr().String(), &link.Hello{ID: 1, Destination: addrPort(elsewhere.Addr())})
		if allow != nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else {
				c.Close()
			}
			continue
		}
		if reason.Of(err) != reason.NotAllowed {
			t.Errorf("%s: the dialer got %v", name, err)
		}
		require.Eventually(t, "counted", func() bool { return p.count(reason.NotAllowed) == 1 })
	}
}

// Whoever says anything but a hello at the mesh port gets not a byte.
func TestUnknownPeersGetNothing(t *testing.T) {
	mesh := listen(t, serverHost)
	p, _ := start(t, Options{MeshPort: 1, HelloTimeout: 50 * time.Millisecond}, nil, mesh)
	rng := rand.New(rand.NewPCG(1, 2))
	hello := (&link.Hello{Destination: netip.MustParseAddrPort("127.0.0.2:1")}).Append(nil)
	for i := 0; i < 100; {
		c, err := net.Dial("tcp", mesh.Addr().String())
		if errors.Is(err, syscall.ECONNRESET) {
			continue // its time was over before this side has looked
		}
		require.NoError(t, err)
		b := bytes.Clone(hello[:len(hello)-1])
		switch {
		case i == 0:
			b = []byte("GET / HTTP/1.1\r\n\r\n")
		case i > 1: // one byte changed, of what is looked at before the whole
			b[rng.IntN(9)] ^= byte(1 + rng.IntN(255))
		}
		c.Write(b)
		if got, _ := io.ReadAll(c); len(got) != 0 {
			t.Fatalf("%x was answered with %x", b, got)
		}
		c.Close()
		i++
	}
	require.Eventually(t, "all are counted", func() bool {
		return p.count(reason.NotHello)+p.count(reason.HelloTimeout)+p.count(reason.Version) >= 100
	})
}

// When the proxy is to end, connections at rest end in order at once, though
// others are busy.
func TestDrainEndsConnectionsAtRest(t *testing.T) {
	h := newTwoHosts(t, func(_, server *Options) { server.Grace = time.Hour })
	idle, idleServer := h.dialLinked(t)
	busy, busyServer := h.dialLinked(t)
	echo(t, idle, idleServer)
	busyEnded := keepBusy(busy, busyServer)
	go h.stopServer()
	if n, err := idle.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the idle connection ended with %v, want an orderly end", err)
	}
	idle.Close()
	idleServer.Close()
	busy.Close()
	<-busyEnded
	busyServer.Close()
	h.stopServer()
	// A new connection finds no proxy and goes straight to the server.
	echo(t, h.dial(t), h.job.next(t))
}

// No connection of a proxy has keepalive: a job whose hosts are cut from each other for minutes
// goes on, as it does without proxies.
func TestConnectionsHaveNoKeepalive(t *testing.T) {
	h := newTwoHosts(t, nil)
	h.dialLinked(t)
	mesh := int(h.worker.opts.MeshPort)
	fds := require.Value(os.ReadDir("/proc/self/fd"))(t)
	ends := 0
	for _, entry := range fds {
		fd := require.Value(strconv.Atoi(entry.Name()))(t)
		local, err1 := unix.Getsockname(fd)
		far, err2 := unix.Getpeername(fd)
		if err1 != nil || err2 != nil {
			continue // no connection
		}
		port := func(a unix.Sockaddr) int {
			if a, ok := a.(*unix.SockaddrInet4); ok {
				return a.Port
			}
			return -1
		}
		if port(local) != mesh && port(far) != mesh {
			continue
		}
		ends++
		if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 0 || err != nil {
			t.Errorf("the link's end from port %d to %d has keepalive %d, want 0; %v", port(local), port(far), on, err)
		}
	}
	if ends < 2 {
		t.Errorf("%d ends of links found, want 2", ends)
	}
}

// Busy connections end when the grace is over.
func TestDrainEndsWithItsGrace(t *testing.T) {
	h := newTwoHosts(t, nil)
	busyEnded := keepBusy(h.dialLinked(t))
	go h.stopServer()
	select {
	case <-busyEnded:
	case <-time.After(time.Minute):
		t.Error("the busy connection goes on")
	}
	h.stopServer()
}

// keepBusy has the client send to the server until that fails.
func keepBusy(client, server *net.TCPConn) (ended chan error) {
	ended = make(chan error, 1)
	go io.Copy(io.Discard, server)
	go func() {
		for {
			if _, err := client.Write(make([]byte, 100)); err != nil {
				ended <- err
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return ended
}

func TestManyConnectionsAndTheirState(t *testing.T) {
	h := newTwoHosts(t, func(worker, _ *Options) { worker.MaxConnections = 200 })
	var clients, servers []*net.TCPConn
	for range 200 {
		clients = append(clients, h.dial(t))
		servers = append(servers, h.job.next(t))
	}
	for i := range clients { // accepted in the order of dialing
		echo(t, clients[i], servers[i])
	}
	h.dialRefused(t)
	if n := h.worker.count(reason.TooMany); n != 1 {
		t.Errorf("%d connections too many counted, want 1", n)
	}
	rec := httptest.NewRecorder()
	h.worker.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/api/v1/connections", nil))
	var s State
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &s))
	if len(s.Connections) != 200 || s.Errors["too_many"] != 1 {
		t.Fatalf("%d connections, errors %v", len(s.Connections), s.Errors)
	}
	i := slices.IndexFunc(s.Connections, func(c ConnectionState) bool { return c.Client == clients[0].LocalAddr().String() })
	if i < 0 {
		t.Fatalf("no connection of %v", clients[0].LocalAddr())
	}
	c := s.Connections[i]
	if c.Kind != "link" || c.Codec != compact.Name || c.Destination != h.job.addr().String() || c.Peer != h.server.String() || c.ToFar.JobBytes != 23 || c.ToJob.FarBytes < 23 {
		t.Errorf("%+v; want destination %v, peer %v", c, h.job.addr(), h.server)
	}
	rec = httptest.NewRecorder()
	h.worker.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{`psidecar_proxy_connections{kind="link"} 200`, `psidecar_proxy_errors_total{reason="too_many"} 1`} {
		if !strings.Contains(rec.Body.String(), line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
}

package proxy

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// The two hosts of these tests are two loopback addresses.
const (
	workerHost = "127.0.0.1"
	serverHost = "127.0.0.2"
)

func listen(t testing.TB, host string) net.Listener {
	t.Helper()
	l := require.Value(net.Listen("tcp", host+":0"))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// server is a process of the job that accepts connections.
type server struct {
	net.Listener
	conns chan *net.TCPConn
}

func newServer(t testing.TB) *server {
	s := &server{listen(t, serverHost), make(chan *net.TCPConn, 1024)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			s.conns <- c.(*net.TCPConn)
		}
	})
	t.Cleanup(func() { s.Close(); running.Wait() })
	return s
}

func (s *server) addr() netip.AddrPort { return addrPort(s.Addr()) }

func (s *server) next(t testing.TB) *net.TCPConn {
	t.Helper()
	select {
	case c := <-s.conns:
		return c
	case <-time.After(time.Minute):
		t.Fatal("no connection reached the server")
		return nil
	}
}

// start runs a proxy until the test ends, or the function returned is called.
func start(t testing.TB, opts Options, job []Listener, mesh ...net.Listener) (*Proxy, func()) {
	t.Helper()
	return startAfter(t, opts, func(*Proxy) {}, job, mesh...)
}

// startAfter is start for a proxy to which something is done before it runs.
func startAfter(t testing.TB, opts Options, before func(*Proxy), job []Listener, mesh ...net.Listener) (*Proxy, func()) {
	t.Helper()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Grace == 0 {
		opts.Grace = 100 * time.Millisecond
	}
	if opts.Reach.Owner == nil && opts.Reach.Ports == nil {
		opts.Reach.Ports = []PortRange{{1, 65535}}
	}
	p := require.Value(New(opts))(t)
	before(p)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, job, mesh) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return p, stop
}

// hosts are two hosts with a proxy each, and a way from one to the other.
type twoHosts struct {
	worker, server *Proxy
	job            *server
	in             net.Listener // connections here go to job
	stopServer     func()
}

func newTwoHosts(t testing.TB, change func(worker, server *Options)) *twoHosts {
	h := &twoHosts{job: newServer(t), in: listen(t, workerHost)}
	mesh := listen(t, serverHost)
	port := addrPort(mesh.Addr()).Port()
	w := Options{MeshPort: port, Codecs: []relay.Codec{compact.New(compact.DefaultLimits)}}
	s := Options{MeshPort: port, Codecs: []relay.Codec{compact.New(compact.DefaultLimits)}}
	if change != nil {
		change(&w, &s)
	}
	h.server, h.stopServer = start(t, s, nil, mesh)
	h.worker, _ = start(t, w, []Listener{{Listener: h.in, Destination: Fixed(h.job.addr())}})
	return h
}

func (h *twoHosts) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	c := require.Value(net.Dial("tcp", h.in.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// dialLinked makes a connection that goes over a link. On a busy machine a proxy may give up the other
// one's handshake, and connect directly.
func (h *twoHosts) dialLinked(t testing.TB) (client, server *net.TCPConn) {
	t.Helper()
	for range 20 {
		client, server = h.dial(t), h.job.next(t)
		require.Eventually(t, "the worker's proxy carries the connection", func() bool { return h.worker.carries(client) != "" })
		if h.worker.carries(client) == kindLink {
			require.Eventually(t, "the server's proxy carries the connection", func() bool { return h.server.carries(client) == kindAccepted })
			return client, server
		}
		t.Log("a connection went directly")
		client.Close()
		server.Close()
	}
	t.Fatal("no connection goes over a link")
	return nil, nil
}

// carries returns how the proxy carries a client's connection; empty: it does not.
func (p *Proxy) carries(client *net.TCPConn) kind {
	for _, c := range p.conns.openConnections() {
		if c.client == addrPort(client.LocalAddr()) {
			return c.kind
		}
	}
	return ""
}

// dialRefused dials and checks that the connection is reset.
func (h *twoHosts) dialRefused(t testing.TB) {
	t.Helper()
	checkRefused(t, h.in.Addr())
}

// checkRefused checks that a connection is reset, as soon as it is made or a moment later.
func checkRefused(t testing.TB, at net.Addr) {
	t.Helper()
	c, err := net.Dial("tcp", at.String())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	if !reason.IsReset(err) {
		t.Errorf("the job got %v, want a reset", err)
	}
}

// echo checks that a message gets through and back.
func echo(t testing.TB, client, server *net.TCPConn) {
	t.Helper()
	for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
		want := []byte("some bytes on their way")
		require.Value(way[0].Write(want))(t)
		got := make([]byte, len(want))
		way[1].SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %q, %v", got, err)
		}
		way[1].SetReadDeadline(time.Time{})
	}
}

func (p *Proxy) count(r reason.Reason) uint64 { return p.conns.sums().errors[r] }

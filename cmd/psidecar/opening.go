package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/internal/handshake"
)

// Bounds of connections at a page that have not asked for anything, or nothing
// more, in all and of one source.
const (
	pageOpenings          = 512
	pageOpeningsPerSource = 64
)

// Bounds of connections at the planner's address that have not said who they are.
// Thousands of hosts may come at once, from one address where another planner
// sends them on.
const (
	plannerOpenings          = 2048
	plannerOpeningsPerSource = 1024
)

// prefaceSize is how much an HTTP/2 client says unasked: its preface and the head
// of a frame.
const prefaceSize = 24 + 9

// openings bound the connections of a listener that have not said enough yet.
type openings struct {
	net.Listener
	set *handshake.Set
}

// Accept implements net.Listener.
func (o openings) Accept() (net.Conn, error) {
	c, err := o.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &opening{Conn: c, end: sync.OnceValue(o.set.Begin(c, addressOf(c)))}, nil
}

func addressOf(c net.Conn) netip.Addr {
	if at, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return at.AddrPort().Addr()
	}
	return netip.Addr{} // all of a unix socket are one source
}

// opening is a connection that counts until end is called, which reports whether it
// was reset for others.
type opening struct {
	net.Conn
	end func() bool
}

// Close implements net.Conn.
func (c *opening) Close() error {
	c.end()
	return c.Conn.Close()
}

// greeted are credentials of a gRPC server whose connections count as opening until
// they have said who they are, and what an HTTP/2 client says.
type greeted struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (g greeted) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	o, ok := conn.(*opening)
	if !ok {
		return g.TransportCredentials.ServerHandshake(conn)
	}
	secured, info, err := g.TransportCredentials.ServerHandshake(o.Conn)
	if err != nil {
		return nil, nil, err // who called closes conn
	}
	return &prefaced{Conn: secured, opening: o, left: prefaceSize}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (g greeted) Clone() credentials.TransportCredentials {
	return greeted{g.TransportCredentials.Clone()}
}

// prefaced is a connection that has yet to say so many bytes. Read is for one
// goroutine at a time, which gRPC's is.
type prefaced struct {
	net.Conn
	opening *opening
	left    int
}

// Read implements net.Conn.
func (p *prefaced) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if p.left > 0 {
		if p.left -= n; p.left <= 0 {
			p.opening.end()
		}
	}
	return n, err
}

// Close implements net.Conn.
func (p *prefaced) Close() error {
	p.opening.end()
	return p.Conn.Close()
}

// pageConn is a context's key for the connection by which a request came.
type pageConn struct{}

// bound has a page's server reset connections that ask for nothing, the oldest
// first, where there are too many. A connection counts until its request's head is
// whole, and from the answer until the next.
func bound(s *http.Server, set *handshake.Set) {
	var mu sync.Mutex
	ends := map[net.Conn]func() bool{}
	end := func(c net.Conn) {
		mu.Lock()
		over := ends[c]
		delete(ends, c)
		mu.Unlock()
		if over != nil {
			over()
		}
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, pageConn{}, c)
	}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew, http.StateIdle:
			over := set.Begin(c, addressOf(c))
			mu.Lock()
			ends[c] = over
			mu.Unlock()
		case http.StateClosed, http.StateHijacked:
			end(c)
		}
	}
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(pageConn{}).(net.Conn); ok {
			end(c)
		}
		next.ServeHTTP(w, r)
	})
}

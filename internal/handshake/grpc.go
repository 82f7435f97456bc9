package handshake

import (
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
)

// prefaceSize is how much an HTTP/2 client says unasked: its preface and the head
// of a frame.
const prefaceSize = 24 + 9

// Listener counts connections from their Accept on in a [Set], until they are closed,
// or have said enough to [Credentials].
type Listener struct {
	net.Listener
	Set *Set
}

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &opening{Conn: c, end: sync.OnceValue(l.Set.Begin(c, addressOf(c)))}, nil
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

// Credentials are those of a gRPC server at a [Listener]: its connections count until
// the peer has identified itself and sent the preface and settings of HTTP/2.
type Credentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (g Credentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	o, ok := conn.(*opening)
	if !ok {
		return g.TransportCredentials.ServerHandshake(conn)
	}
	secured, info, err := g.TransportCredentials.ServerHandshake(o.Conn)
	if err != nil {
		return nil, nil, err // the caller closes conn
	}
	return &prefaced{Conn: secured, opening: o, left: prefaceSize}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (g Credentials) Clone() credentials.TransportCredentials {
	return Credentials{g.TransportCredentials.Clone()}
}

// prefaced is a connection that still owes some bytes of its preface. Read is for
// one goroutine at a time, which gRPC's is.
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

package handshake

import (
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
)

// prefaceSize is what an HTTP/2 client sends unprompted: the preface and the header of a
// SETTINGS frame.
const prefaceSize = 24 + 9

// A Listener counts its connections in a [Set] from Accept on, until they are closed or
// [Credentials] have seen enough of them.
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
	return netip.Addr{} // all unix sockets count as one source
}

// opening is a connection that is counted until end is called. end reports whether the
// connection was reset to make room, and may be called repeatedly.
type opening struct {
	net.Conn
	end func() bool
}

// Close implements net.Conn.
func (c *opening) Close() error {
	c.end()
	return c.Conn.Close()
}

// Credentials are those of a gRPC server at a [Listener]. A connection is counted until the
// peer has identified itself and has sent HTTP/2's preface and settings. The TLS handshake
// alone is not enough: a peer could finish it and then fall silent.
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

// prefaced is a connection whose peer still has to send left bytes. Read must be called from
// one goroutine at a time, as gRPC does.
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

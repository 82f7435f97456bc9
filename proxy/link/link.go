// Package link makes and accepts the connections between proxies: one for each intercepted
// connection, which keeps PS-lite's order per connection. It ends where the connection's
// bytes begin.
//
// The dialer connects to the mesh port at the address where the job's process wanted to go,
// does TLS where that is configured, and sends a [Hello]. The acceptor connects to the real
// destination on its own host and sends an [Answer]. Then the bytes of the connection follow,
// in both directions. A dialer that meets no proxy gets [ErrNoProxy] and connects directly; a
// peer that is no proxy gets not a byte.
//
// hello.go has the wire format, tls.go decides which certificates are accepted. [Dialer] and
// [Acceptor] have no state, and may be used concurrently. Package proxy calls them.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// ErrNoProxy is wrapped by errors of [Dialer.Dial] which mean that nothing, or no proxy to
// talk to, is at the destination's mesh port. Other errors mean that there is a proxy which
// refuses.
var ErrNoProxy = errors.New("no proxy at the destination")

// Dialer makes links.
type Dialer struct {
	// Net makes the connections; its Control may mark the sockets.
	Net *net.Dialer
	// ConnectTimeout bounds the connect: a host that does not answer at all, not even by
	// refusing, delays the job's connection for that long. AnswerTimeout bounds the time from
	// then to the answer, which includes TLS and the peer's own connect to the destination.
	ConnectTimeout, AnswerTimeout time.Duration
	TLS                           *Identity // nil: plain
}

// Dial connects to the proxy at mesh and sends the hello. It blocks until the answer has
// come, within the timeouts and ctx. The caller closes the connection returned; after an
// error nothing is open. A refusal is a [*reason.Error] with the peer's reason.
func (d *Dialer) Dial(ctx context.Context, mesh string, h *Hello) (net.Conn, *Answer, error) {
	connecting, cancel := context.WithTimeout(ctx, d.ConnectTimeout)
	conn, err := d.Net.DialContext(connecting, "tcp", mesh)
	cancel()
	if err != nil {
		if reason.IsNoDescriptors(err) {
			return nil, nil, reason.Errorf(reason.NoDescriptors, "link: dialing %s: %w", mesh, err)
		}
		return nil, nil, fmt.Errorf("link: dialing %s: %w: %w", mesh, ErrNoProxy, err)
	}
	secured, answer, err := d.greet(ctx, conn, h)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("link to %s: %w", mesh, err)
	}
	return secured, answer, nil
}

// greet does TLS, sends the hello and reads the answer. The end of ctx interrupts it by a
// deadline in the past.
func (d *Dialer) greet(ctx context.Context, conn net.Conn, h *Hello) (net.Conn, *Answer, error) {
	conn.SetDeadline(time.Now().Add(d.AnswerTimeout))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var own Key
	if d.TLS != nil {
		config := d.TLS.client()
		own = keyOf(config)
		t := tls.Client(conn, config)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, nil, tlsError(err)
		}
		conn = t
	}
	if _, err := conn.Write(h.Append(nil)); err != nil {
		return nil, nil, fmt.Errorf("%w: saying hello: %w", ErrNoProxy, err)
	}
	answer, err := ReadAnswer(conn)
	if err != nil {
		// In TLS 1.3 the client's handshake ends before the server has judged its
		// certificate, so a rejection shows here.
		if refused := alert(err); refused != nil {
			return nil, nil, refused
		}
		return nil, nil, fmt.Errorf("%w: %w", ErrNoProxy, err)
	}
	if answer.Refused != "" {
		return nil, nil, reason.Errorf(answer.Refused, "the peer refused: %s", answer.Text)
	}
	answer.Proven = prove(answer.Instance, h.Instance, KeyOf(conn), own)
	// ctx has ended, and its function may yet set the deadline: the connection is of no use.
	if !stop() && ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	return conn, answer, conn.SetDeadline(time.Time{})
}

// Acceptor accepts links.
type Acceptor struct {
	Instance     relay.Instance // of this proxy
	HelloTimeout time.Duration  // from accepting the connection to the end of the hello
	TLS          *Identity      // nil: plain
}

// Accept reads the hello from a connection to the mesh port, after TLS where that is
// configured. It writes nothing besides TLS. After an error the caller closes conn; otherwise
// it answers by [Reply] on the connection returned, which is conn or TLS on it.
func (a *Acceptor) Accept(ctx context.Context, conn net.Conn) (net.Conn, *Hello, error) {
	conn.SetDeadline(time.Now().Add(a.HelloTimeout))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var own Key
	if a.TLS != nil {
		config := a.TLS.server()
		own = keyOf(config)
		t := tls.Server(conn, config)
		switch err := t.HandshakeContext(ctx); {
		case err == io.EOF:
			return nil, nil, reason.Errorf(reason.NotHello, "before a TLS handshake: %w", ErrNothing)
		case err != nil:
			return nil, nil, tlsError(err)
		}
		conn = t
	}
	h, err := ReadHello(conn)
	if err != nil {
		return nil, nil, err
	}
	h.Proven = prove(h.Instance, a.Instance, KeyOf(conn), own)
	if !stop() {
		return nil, nil, ctx.Err()
	}
	return conn, h, conn.SetDeadline(time.Time{})
}

// Reply sends the answer to a hello. After an acceptance bytes of the connection may follow
// at once.
func Reply(conn net.Conn, a *Answer) error {
	if _, err := conn.Write(a.Append(nil)); err != nil {
		return fmt.Errorf("link: answering: %w", err)
	}
	return nil
}

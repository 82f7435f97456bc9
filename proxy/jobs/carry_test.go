package jobs

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// carried is a connection that a relay carries past a line.
type carried struct {
	process *net.TCPConn // the process's end
	far     *net.TCPConn // the end of the link
	conn    *relay.Conn
	ended   chan struct{} // closed when the relay has ended
	err     error         // why; valid then
}

// carry has a relay carry a connection past a line, of requests unless it is one of answers. begun
// means that no greetings come.
func carry(t *testing.T, l relay.Stage, begun bool) *carried {
	t.Helper()
	near, job := connected(t)
	far, link := connected(t)
	c := &carried{process: near.(*net.TCPConn), far: far.(*net.TCPConn), ended: make(chan struct{})}
	c.conn = &relay.Conn{Job: job, Far: link}
	if _, inbound := l.(*answers); inbound {
		c.conn.Inbound = l
	} else {
		c.conn.Outbound = l
	}
	if begun {
		c.conn.Passing = &relay.Passing{Begun: true}
	}
	return c.run(t)
}

func (c *carried) run(t *testing.T) *carried {
	go func() {
		defer close(c.ended)
		c.err = c.conn.Run(t.Context(), relay.NewMemory(1<<30))
	}()
	t.Cleanup(func() {
		c.process.Close()
		c.far.Close()
		<-c.ended
	})
	return c
}

// end has the process end its stream, then the far end, and waits for the relay's end.
func (c *carried) end(t *testing.T) {
	t.Helper()
	for _, halves := range [][2]*net.TCPConn{{c.process, c.far}, {c.far, c.process}} {
		require.NoError(t, halves[0].CloseWrite())
		require.Value(io.Copy(io.Discard, halves[1]))(t)
	}
	<-c.ended
}

// expect reads what must come next.
func expect(t *testing.T, from net.Conn, what string, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	from.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := io.ReadFull(from, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes, %q, %v; want %d, %q", what, n, got[:min(n, 100)], err, len(want), want[:min(len(want), 100)])
	}
}

// sayTo writes.
func sayTo(t *testing.T, to net.Conn, b []byte) {
	t.Helper()
	require.Value(to.Write(b))(t)
}

// plainCodec leaves all messages as they are. With it a connection can change links.
type plainCodec struct{}

func (plainCodec) Encode(dst []byte, _ *relay.Message) ([]byte, uint32, bool) { return dst, 0, false }
func (plainCodec) Decode([]byte) ([][]byte, uint32, error) {
	return nil, 0, errors.New("nothing is encoded")
}
func (plainCodec) Close() {}

// mesh is a process's connection to another one, over a link between two relays. Its line is at the
// first.
type mesh struct {
	process, destination *net.TCPConn
	near, far            *relay.Conn
	running              sync.WaitGroup
	nearErr, farErr      error // after running
}

// newMesh returns a mesh that is not carried yet.
func newMesh(t *testing.T, line relay.Stage) *mesh {
	t.Helper()
	process, job := connected(t)
	destination, server := connected(t)
	m := &mesh{process: process.(*net.TCPConn), destination: destination.(*net.TCPConn)}
	m.near = &relay.Conn{Job: job, Outbound: line, Passing: &relay.Passing{}}
	m.far = &relay.Conn{Job: server, Passing: &relay.Passing{}}
	return m
}

// carry begins to carry it over a new link.
func (m *mesh) carry(t *testing.T) {
	a, b := connected(t)
	for _, c := range []*relay.Conn{m.near, m.far} {
		c.Sender, c.Receiver = plainCodec{}, plainCodec{}
	}
	m.near.Far, m.far.Far = a, b
	memory := relay.NewMemory(1 << 30)
	m.running.Go(func() { m.nearErr = m.near.Run(t.Context(), memory) })
	m.running.Go(func() { m.farErr = m.far.Run(t.Context(), memory) })
}

// pass ends the link in order, and prepares the next one with another line. It returns false where
// the connection has ended instead.
func (m *mesh) pass(t *testing.T, line relay.Stage) bool {
	t.Helper()
	m.near.Pass(0)
	m.running.Wait()
	if m.nearErr == nil && m.farErr == nil {
		return false
	}
	if !errors.Is(m.nearErr, relay.ErrPassed) || !errors.Is(m.farErr, relay.ErrPassed) {
		t.Fatalf("the link ends with %v and %v", m.nearErr, m.farErr)
	}
	next := func(c *relay.Conn, line relay.Stage) *relay.Conn {
		return &relay.Conn{Job: c.Job, Outbound: line, Passing: &relay.Passing{Begun: true, Left: c.Passing.Left, Ready: c.Passing.Ready}}
	}
	m.near, m.far = next(m.near, line), next(m.far, nil)
	return true
}

// passed returns what comes to the link of all that a process says.
func passed(t *testing.T, line *requests, said []byte) []byte {
	t.Helper()
	c := carry(t, line, false)
	go func() {
		c.process.Write(said)
		c.process.CloseWrite()
	}()
	got := require.Value(io.ReadAll(c.far))(t)
	return got
}

// takeFrom calls take with a whole message.
func takeFrom(b []byte, take func(*pslite.Message, pslite.Dialect) error) error {
	frames, err := cutMessage(bytes.Clone(b))
	if err != nil {
		return err
	}
	var m pslite.Message
	var detector pslite.Detector
	d, err := m.Decode(&detector, frames)
	if err != nil {
		return err
	}
	return take(&m, d)
}

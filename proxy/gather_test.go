package proxy

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// heldBack is a queue with or without a push that waits.
type heldBack struct {
	relay.Gatherer
	waits, closed bool
}

func (h *heldBack) GoOn(aggregate.Link) {}
func (h *heldBack) Waiting() bool       { return h.waits }
func (h *heldBack) Close()              { h.closed = true }

// A connection of which a push waits to be summed goes on over a link without a codec:
// the push cannot go there, and its worker would wait for ever. Both sides are reset, so
// that the worker reconnects; where nothing waits the connection goes on.
func TestWaitingPushOverALinkThatCannotGather(t *testing.T) {
	for name, waits := range map[string]bool{"a push waits": true, "nothing waits": false} {
		t.Run(name, func(t *testing.T) {
			sums := require.Value(aggregate.New(aggregate.Options{}))(t)
			p := require.Value(New(Options{MeshPort: 9814, Insecure: true, Aggregate: sums, Log: slog.New(slog.DiscardHandler)}))(t)
			q := &heldBack{waits: waits}
			job, process := tcpPair(t)
			far, other := tcpPair(t)
			c := &connection{kind: kindLink, transit: &transit{gathered: gathered{queue: q}}}
			c.pipe.Job, c.pipe.Far = job, far
			ended := make(chan error, 1)
			go func() { ended <- p.carry(c) }()
			if !waits {
				process.Close()
				other.Close()
			}
			select {
			case err := <-ended:
				if errors.Is(err, aggregate.ErrLost) != waits {
					t.Errorf("the connection ended with %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the connection goes on")
			}
			if !q.closed {
				t.Error("the queue is not closed")
			}
			if !waits {
				return
			}
			for side, conn := range map[string]net.Conn{"the process": process, "the other proxy": other} {
				conn.SetReadDeadline(time.Now().Add(30 * time.Second))
				_, err := conn.Read(make([]byte, 1))
				if timeout, ok := errors.AsType[net.Error](err); err == nil || errors.Is(err, io.EOF) || ok && timeout.Timeout() {
					t.Errorf("%s reads %v, want a reset", side, err)
				}
			}
		})
	}
}

// tcpPair is both ends of a TCP connection on this host.
func tcpPair(t *testing.T) (one, other net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	one = require.Value(net.Dial("tcp", l.Addr().String()))(t)
	other = require.Value(l.Accept())(t)
	t.Cleanup(func() { one.Close(); other.Close() })
	return one, other
}

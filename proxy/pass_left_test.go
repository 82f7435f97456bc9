package proxy

import (
	"log/slog"
	"net"
	"testing"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/test/require"
)

// What the relay has read of the next message is handed over: a server that answers on the asker's
// connection would otherwise be cut off in an answer.
func TestTheRelaysRestIsHandedOver(t *testing.T) {
	p := require.Value(New(Options{MeshPort: 9814, Insecure: true, Log: slog.New(slog.DiscardHandler)}))(t)
	heir := &estate{}
	p.LeaveTo(heir)
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	conn := require.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer conn.Close()
	st := keep.State{Client: addrPort(conn.LocalAddr()), Destination: addrPort(l.Addr()), Far: addrPort(l.Addr()).Addr(), Left: []byte("half a meta")}
	require.NoError(t, p.passes.handOver(&transit{State: st, job: conn}))
	if len(heir.left) != 1 {
		t.Fatalf("%d connections were handed over, want 1", len(heir.left))
	}
	heir.left[0].socket.Close()
	got, err := keep.ReadState(heir.left[0].state)
	heir.left[0].state.Close()
	require.NoError(t, err)
	if want := "half a meta"; string(got.Left) != want {
		t.Errorf("handed over with %q, want %q", got.Left, want)
	}
}

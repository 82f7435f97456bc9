package proxy

import (
	"log/slog"
	"net"
	"testing"

	"github.com/psidecar/psidecar/proxy/keep"
)

// What the relay has read of the next message is handed over: a server that answers on the asker's
// connection would otherwise be cut off in an answer.
func TestTheRelaysRestIsHandedOver(t *testing.T) {
	p, err := New(Options{MeshPort: 9814, Insecure: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	heir := &estate{}
	p.LeaveTo(heir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	st := keep.State{Client: addrPort(conn.LocalAddr()), Destination: addrPort(l.Addr()), Far: addrPort(l.Addr()).Addr(), Left: []byte("half a meta")}
	if err := p.passes.handOver(&transit{State: st, job: conn}); err != nil {
		t.Fatal(err)
	}
	if len(heir.left) != 1 {
		t.Fatalf("%d connections were handed over, want 1", len(heir.left))
	}
	heir.left[0].socket.Close()
	got, err := keep.ReadState(heir.left[0].state)
	heir.left[0].state.Close()
	if err != nil {
		t.Fatal(err)
	}
	if want := "half a meta"; string(got.Left) != want {
		t.Errorf("handed over with %q, want %q", got.Left, want)
	}
}

package proxy

import (
	"log/slog"
	"net"
	"testing"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/keep"
)

// ahead is a connection of a router that has read ahead.
type ahead struct {
	net.Conn
	left []byte
}

func (a *ahead) Leave() ([]byte, error) { return a.left, nil }
func (a *ahead) GoOn(jobs.Peer)         {}
func (a *ahead) NetConn() net.Conn      { return a.Conn }

// What the relay has read of the next message is handed over also where a router has the
// connection, before what that has read ahead: a server that answers on the asker's connection
// would otherwise be cut off in an answer.
func TestTheRelaysRestIsHandedOver(t *testing.T) {
	for _, routers := range []string{"", "and a key"} {
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
		st := keep.State{Client: addrPort(conn.LocalAddr()), Destination: addrPort(l.Addr()), Far: addrPort(l.Addr()).Addr(), Left: []byte("half a meta ")}
		if err := p.passes.handOver(&transit{State: st, job: &ahead{conn, []byte(routers)}}); err != nil {
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
		if want := "half a meta " + routers; string(got.Left) != want {
			t.Errorf("handed over with %q, want %q", got.Left, want)
		}
	}
}

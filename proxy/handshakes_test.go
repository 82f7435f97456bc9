package proxy

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/reason"
)

// Silent connections to a mesh port take no slot from those that say hello, of
// their own source or another: many more of them than there are slots.
func TestSilentConnectionsTakeNoSlots(t *testing.T) {
	mesh, job := listen(t, serverHost), newServer(t)
	const slots = 4
	p, _ := start(t, Options{MeshPort: addrPort(mesh.Addr()).Port() + 1, MaxConnections: slots, HelloTimeout: time.Hour}, nil, mesh)
	for range 500 {
		c, err := net.Dial("tcp", mesh.Addr().String())
		if errors.Is(err, syscall.ECONNRESET) {
			continue // it has made room for others before this side has looked
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	if n, most := p.greeting.Size(), handshakesPerSource; n > most {
		t.Errorf("%d connections of one source are waited for, at most %d should be", n, most)
	}
	for _, from := range []string{workerHost, "127.0.0.9"} {
		local := net.TCPAddr{IP: net.ParseIP(from)}
		d := link.Dialer{Net: &net.Dialer{LocalAddr: &local}, ConnectTimeout: time.Minute, AnswerTimeout: time.Minute}
		for range slots / 2 {
			c, _, err := d.Dial(context.Background(), mesh.Addr().String(), &link.Hello{Destination: job.addr()})
			if err != nil {
				t.Fatalf("a link from %s beside silent connections: %v", from, err)
			}
			t.Cleanup(func() { c.Close() })
			job.next(t)
		}
	}
	eventually(t, "those that made room are counted", func() bool { return p.count(reason.Silent) >= 500-handshakesPerSource })
}

package spare

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// counted is a connection that counts what goes through it.
type counted struct {
	net.Conn
	read, written *atomic.Uint64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(uint64(n))
	return n, err
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(uint64(n))
	return n, err
}

// Both ends of links count the bytes that go through them, each apart and all together, with values that
// are copied to be written and those that are not.
func TestTrafficIsWhatLinksCarry(t *testing.T) {
	var all Traffic
	var read, written atomic.Uint64
	asked := []*Traffic{NewTraffic(&all), NewTraffic(&all)}
	served := NewTraffic(nil)
	store := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer store.Close()
	server := NewServer(store, ServerOptions{Traffic: served})
	var got recorder
	for worker, traffic := range asked {
		c := runClient(t, ClientOptions{Answer: got.note, Traffic: traffic, Dial: func(ctx context.Context) (Link, error) {
			here, there, err := loopback()
			if err != nil {
				return Link{}, err
			}
			go server.Serve(ctx, there)
			return Link{Conn: counted{here, &read, &written}}, nil
		}})
		for i, size := range []int{4, leastApart - 4, leastApart, 1 << 20} {
			push := &Request{Worker: int32(worker), Timestamp: int32(2 * i), Push: true, Pieces: []Piece{{uint64(i), make([]byte, size)}}}
			pull := &Request{Worker: int32(worker), Timestamp: int32(2*i + 1), Pull: true, Pieces: []Piece{{Key: uint64(i)}}}
			c.Send(push)
			got.wait(t, push.Worker, push.Timestamp)
			c.Send(pull)
			if a := got.wait(t, pull.Worker, pull.Timestamp); a.Err != nil || len(a.Values) != 1 || len(a.Values[0]) != size {
				t.Fatalf("a value of %d bytes is answered with %d, %v", size, len(a.Values), a.Err)
			}
		}
	}
	// A side may count what it has sent a little after the other has received it.
	var sent, received uint64
	waitFor(t, "both sides count what they have sent", func() bool {
		sent, received = all.Bytes()
		answered, requested := served.Bytes()
		return answered == received && requested == sent
	})
	var sentApart, receivedApart uint64
	for _, a := range asked {
		s, r := a.Bytes()
		sentApart, receivedApart = sentApart+s, receivedApart+r
	}
	if sent, received := [3]uint64{sent, sentApart}, [3]uint64{received, receivedApart}; sent[0] != sent[1] || sent[0] != written.Load() || received[0] != received[1] || received[0] != read.Load() {
		t.Errorf("counted sent %d and received %d (all, and one by one); %d and %d went through", sent, received, written.Load(), read.Load())
	}
	if least := uint64(2 * (4 + 2*leastApart - 4 + 1<<20)); sent < least || received < least {
		t.Errorf("%d bytes sent and %d received with %d of values", sent, received, least)
	}
}

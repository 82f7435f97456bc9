package proxy

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/spare"
)

// What goes to spare servers counts as sent, and what they answer as taken from a server: nothing is saved by it, but
// what they leave out.
func TestSpareServersSaveNoBytes(t *testing.T) {
	all, err := jobs.New(jobs.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Jobs: all})
	if err != nil {
		t.Fatal(err)
	}
	asked, served := all.SpareTraffic()
	store, err := spare.OpenStore(filepath.Join(t.TempDir(), "store"), spare.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	server := spare.NewServer(store, spare.ServerOptions{Traffic: served})
	answers := make(chan spare.Answer, 3)
	client := spare.NewClient(spare.ClientOptions{
		Traffic: asked, Answer: func(a spare.Answer) { answers <- a }, Memory: relay.NewMemory(1 << 20),
		Dial: func(ctx context.Context) (spare.Link, error) {
			here, there := net.Pipe()
			go server.Serve(ctx, there)
			return spare.Link{Conn: here, Keeps: true}, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	client.Send(&spare.Request{Worker: 9, Timestamp: 1, Push: true, Pieces: []spare.Piece{{Key: 3, Value: make([]byte, 1000)}}})
	client.Send(&spare.Request{Worker: 11, Timestamp: 1, Pull: true, Pieces: []spare.Piece{{Key: 3}}})
	client.Send(&spare.Request{Worker: 9, Timestamp: 2, Pull: true, Pieces: []spare.Piece{{Key: 3}}})
	for range 3 {
		if a := <-answers; a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	sent, received := asked.Bytes()
	taken, given := served.Bytes()
	// A side counts what it has sent a little after the other has received it.
	for end := time.Now().Add(time.Minute); taken != received || given != sent; taken, given = served.Bytes() {
		if time.Now().After(end) {
			t.Fatalf("the spare server counts %d and %d bytes, the client %d and %d", taken, given, received, sent)
		}
		time.Sleep(time.Millisecond)
		sent, received = asked.Bytes()
	}
	if sent < 1000 || received < 1000 {
		t.Fatalf("%d bytes sent and %d received, with 1000 of values", sent, received)
	}
	if served.Spared() != 1000 || asked.Spared() != 1000 {
		t.Fatalf("the spare server has left out %d bytes, the client misses %d; want 1000", served.Spared(), asked.Spared())
	}
	if job, far := p.Carried(); job != taken+1000 || far != sent+taken {
		t.Errorf("%d bytes carried as %d, want %d as %d", job, far, taken+1000, sent+taken)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(p)
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	want := map[string]uint64{"to_far job": taken + 1000, "to_far far": sent + taken, "to_job far": received + given, "to_job job": given}
	for _, f := range families {
		if f.GetName() != "psidecar_proxy_bytes_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			series++
			var labels []string // by name: codec, direction, side
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if labels[0] != spareCodec || uint64(m.GetCounter().GetValue()) != want[strings.Join(labels[1:], " ")] {
				t.Errorf("%v: %v, want %d", labels, m.GetCounter().GetValue(), want[strings.Join(labels[1:], " ")])
			}
		}
	}
	if series != 4 {
		t.Errorf("%d series of bytes, want 4", series)
	}
}

// What a spare server left out is said where it is not nothing.
func TestPrintSpare(t *testing.T) {
	j := &jobs.State{InParts: &jobs.PartsState{
		Spare:  []jobs.SpareState{{Host: "10.0.0.2", Connected: true, SentBytes: 5, ReceivedBytes: 6, SparedBytes: 7}, {Host: "10.0.0.3", SentBytes: 1}},
		Serves: &jobs.SpareServerState{Links: 2, SentBytes: 3, ReceivedBytes: 4, SparedBytes: 8},
	}}
	var got strings.Builder
	printSpare(&got, j)
	want := `  spare server at 10.0.0.2: sent 5 bytes, received 6 (7 left out, pulled by another worker before); 0 requests (0 bytes) in flight; room for 0 bytes
  spare server at 10.0.0.3: sent 1 bytes, received 0; 0 requests (0 bytes) in flight; room for 0 bytes, not connected
  spare server of this host: sent 3 bytes (8 left out, pulled by another worker before), received 4, 2 links
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

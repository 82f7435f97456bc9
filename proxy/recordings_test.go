package proxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/require"
)

// recorder joins the bytes of one direction.
type recorder struct{ all []byte }

func (r *recorder) Bytes(_ time.Time, b []byte) { r.all = append(r.all, b...) }
func (r *recorder) Gap(time.Time, uint64)       {}
func (r *recorder) End()                        {}

// connections returns both directions of each of a recording's connections.
func connections(t testing.TB, name string) (pairs [][2][]byte) {
	t.Helper()
	file := require.Value(os.ReadFile(require.Capture(t, name+".pcapng")))(t)
	flows := map[capture.Flow]*recorder{}
	a := capture.NewAssembler(func(f capture.Flow, _ bool) capture.Sink {
		flows[f] = &recorder{}
		return flows[f]
	})
	if _, err := capture.Segments(bytes.NewReader(file), func(s *capture.Segment) error {
		c := *s
		c.Payload = bytes.Clone(s.Payload)
		a.Add(&c)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	a.Close()
	for f, there := range flows {
		if back := flows[f.Reverse()]; back != nil && f.String() < f.Reverse().String() {
			pairs = append(pairs, [2][]byte{there.all, back.all})
		}
	}
	return pairs
}

// send writes b in random pieces, then ends the stream.
func send(c *net.TCPConn, b []byte, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	for len(b) > 0 {
		n := 1 + rng.IntN(min(len(b), 1<<rng.IntN(15)))
		if _, err := c.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return c.CloseWrite()
}

func receive(c *net.TCPConn, want []byte) error {
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%d bytes came, not the %d that were sent", len(got), len(want))
	}
	return err
}

// What real programs said to each other comes through two proxies as it was,
// in whatever pieces, and takes fewer bytes in between.
func TestRecordingsPass(t *testing.T) {
	for _, name := range []string{"dmlc-kv-2s2w", "dmlc-kv-1s3w", "dmlc-resend-2s2w", "dmlc-heartbeat-2s1w", "byteps-kv-2s2w"} {
		t.Run(name, func(t *testing.T) { passRecording(t, name, newTwoHosts(t, nil)) })
	}
}

func TestRecordingsPassOverTLS(t *testing.T) {
	f := certs.NewAuthority(t, "ca").Issue(t, t.TempDir(), "proxy", time.Now().Add(time.Hour))
	files := link.Files{Peers: []string{"proxy"}}
	files.Cert, files.Key, files.CA = f.Cert, f.Key, f.CA
	identity := require.Value(link.LoadIdentity(files))(t)
	for _, codec := range []bool{true, false} {
		t.Run(fmt.Sprintf("codec=%v", codec), func(t *testing.T) {
			passRecording(t, "dmlc-resend-2s2w", newTwoHosts(t, func(worker, server *Options) {
				worker.TLS, server.TLS = identity, identity
				if !codec {
					server.Codecs = nil
				}
			}))
		})
	}
}

// passRecording replays a recording's connections between two hosts.
func passRecording(t *testing.T, name string, h *twoHosts) {
	pairs := connections(t, name)
	if len(pairs) < 5 {
		t.Fatalf("%d connections in the recording", len(pairs))
	}
	for round, pair := range pairs {
		client := h.dial(t)
		server := h.job.next(t)
		errs := make(chan error, 4)
		seed := uint64(round)
		go func() { errs <- send(client, pair[0], seed) }()
		go func() { errs <- send(server, pair[1], seed+1000) }()
		go func() { errs <- receive(server, pair[0]) }()
		go func() { errs <- receive(client, pair[1]) }()
		for range 4 {
			if err := <-errs; err != nil {
				t.Errorf("connection %d: %v", round, err)
			}
		}
	}
	require.Eventually(t, "all connections closed", func() bool { return h.worker.conns.active()+h.server.conns.active() == 0 })
	s := h.worker.conns.sums()
	if s.total[kindLink] != uint64(len(pairs)) || len(s.errors) != 0 {
		t.Errorf("connections %v, errors %v", s.total, s.errors)
	}
	if len(h.server.opts.Codecs) == 0 {
		return
	}
	f := s.flows[compact.Name].toFar
	if f.Messages == 0 || f.Out > f.In {
		t.Errorf("%d messages, %d bytes became %d", f.Messages, f.In, f.Out)
	}
	t.Logf("%d messages, %d encoded, %d bytes became %d", f.Messages, f.Encoded, f.In, f.Out)
}

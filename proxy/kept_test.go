package proxy

import (
	"bytes"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/require"
)

// holding is a keeper that holds nothing but says so.
type holding struct {
	mu  sync.Mutex
	all map[uint64]bool
}

func (h *holding) Most() int { return 100 }
func (h *holding) Keep(id uint64, _ *net.TCPConn, _ *os.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[uint64]bool{}
	}
	h.all[id] = true
}
func (h *holding) Took(id uint64, c *net.TCPConn, f *os.File) { h.Keep(id, c, f) }
func (h *holding) Drop(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, id)
}

// keepingHosts are two hosts whose connections are kept.
func keepingHosts(t *testing.T, change func(worker, server *Options)) *twoHosts {
	t.Helper()
	if err := keep.Supported(); err != nil {
		require.Missing(t, "%v", err)
	}
	h := newTwoHosts(t, func(w, s *Options) {
		w.Log, s.Log = slog.New(slog.NewTextHandler(t.Output(), nil)), slog.New(slog.NewTextHandler(t.Output(), nil))
		change(w, s)
	})
	for _, p := range []*Proxy{h.worker, h.server} {
		p.Keep(&holding{})
		p.Settled()
	}
	return h
}

// breakLinks has all links of a proxy break.
func (p *Proxy) breakLinks() {
	for _, c := range p.conns.openConnections() {
		if c.kept != nil {
			c.pipe.Break()
		}
	}
}

// Whatever the codec, and whatever the stream is, a connection loses no byte and gets
// none twice when its links break, again and again.
func TestLinksBreak(t *testing.T) {
	for _, c := range []struct {
		name   string
		codecs []relay.Codec
		stream func(rng *rand.Rand) []byte
		tls    *link.Identity
	}{
		{"bytes", nil, anyBytes, nil},
		{"other protocol", compactOnly(), anyBytes, nil},
		{"messages", compactOnly(), messages, nil},
		{"messages, no codec", nil, messages, nil},
		{"messages, TLS", compactOnly(), messages, issued(t)},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := keepingHosts(t, func(w, s *Options) { w.Codecs, s.Codecs, w.TLS, s.TLS = c.codecs, c.codecs, c.tls, c.tls })
			client := h.dial(t)
			server := h.job.next(t)
			rng := rand.New(rand.NewPCG(1, 2))
			streams := [2][]byte{c.stream(rng), c.stream(rng)}
			var both sync.WaitGroup
			for i, way := range [][2]net.Conn{{client, server}, {server, client}} {
				both.Go(func() { exchange(t, way[0], way[1], streams[i], uint64(i)) })
			}
			over := make(chan struct{})
			go func() { both.Wait(); close(over) }()
			breaks := 0
			for p := h.worker; ; breaks++ {
				select {
				case <-over:
				case <-time.After(time.Duration(rng.IntN(40)) * time.Millisecond):
					if p.breakLinks(); p == h.worker {
						p = h.server
					} else {
						p = h.worker
					}
					continue
				}
				break
			}
			for _, p := range []*Proxy{h.worker, h.server} {
				require.Eventually(t, "the connection is over", func() bool { return p.conns.active() == 0 })
			}
			t.Logf("%d breaks, taken up %d times", breaks, h.worker.kept.taken)
			if h.worker.kept.taken < 5 || h.worker.kept.lost+h.server.kept.lost > 0 {
				t.Errorf("taken up %d times, lost %d and %d", h.worker.kept.taken, h.worker.kept.lost, h.server.kept.lost)
			}
		})
	}
}

// issued returns a proxy's certificate, of an authority of its own, that proxies with it
// take.
func issued(t *testing.T) *link.Identity {
	t.Helper()
	f := certs.NewAuthority(t, "ca").Issue(t, t.TempDir(), "proxy", time.Now().Add(time.Hour), certs.Parts...)
	var files link.Files
	files.Cert, files.Key, files.CA = f.Cert, f.Key, f.CA
	i := require.Value(link.LoadIdentity(files))(t)
	return i
}

// A proxy that is killed while it does TLS with another has not refused to go on with a
// connection; one that does not take the other's certificate has.
func TestBrokenHandshakes(t *testing.T) {
	mine, others := issued(t), issued(t)
	for _, c := range []struct {
		name    string
		peer    func(conn *net.TCPConn)
		refused bool
	}{
		{"reset before the hello", func(c *net.TCPConn) { sock.Reset(c) }, false},
		{"reset after the hello", func(c *net.TCPConn) { c.Read(make([]byte, 1)); sock.Reset(c) }, false},
		{"ended after the hello", func(c *net.TCPConn) { io.ReadFull(c, make([]byte, 5)); c.CloseWrite(); io.Copy(io.Discard, c) }, false},
		{"silent", func(c *net.TCPConn) { io.Copy(io.Discard, c) }, false},
		{"another authority's", func(c *net.TCPConn) {
			(&link.Acceptor{HelloTimeout: time.Minute, TLS: others}).Accept(t.Context(), c)
		}, true},
		{"no TLS", func(c *net.TCPConn) { c.Write(make([]byte, 100)); io.Copy(io.Discard, c) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var peer sync.WaitGroup
			defer peer.Wait()
			defer at.Close()
			peer.Go(func() {
				conn, err := at.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				c.peer(conn.(*net.TCPConn))
				conn.Close()
			})
			d := link.Dialer{Net: &net.Dialer{}, ConnectTimeout: time.Minute, AnswerTimeout: 500 * time.Millisecond, TLS: mine}
			_, _, err = d.Dial(t.Context(), at.Addr().String(), &link.Hello{})
			if err == nil || refused(err) != c.refused {
				t.Errorf("%v counts as refused: %v", err, refused(err))
			}
		})
	}
}

// exchange sends a stream in pieces and checks that it comes out as it is, to its end.
func exchange(t *testing.T, from, to net.Conn, stream []byte, seed uint64) {
	var sending sync.WaitGroup
	sending.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 7))
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(4<<10))
			if _, err := from.Write(rest[:n]); err != nil {
				t.Errorf("sending: %v", err)
				return
			}
			rest = rest[n:]
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
		}
		from.(*net.TCPConn).CloseWrite()
	})
	to.SetReadDeadline(time.Now().Add(time.Minute))
	got, err := io.ReadAll(to)
	if err != nil || !bytes.Equal(got, stream) {
		same := 0
		for same < min(len(got), len(stream)) && got[same] == stream[same] {
			same++
		}
		t.Errorf("%d bytes came of %d, the first %d right: %v", len(got), len(stream), same, err)
	}
	sending.Wait()
}

func anyBytes(rng *rand.Rand) []byte {
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func compactOnly() []relay.Codec { return []relay.Codec{compact.New(compact.DefaultLimits)} }

// messages are those of a PS-lite process: pushes of up to 40 kB, and a few that are
// larger than what is held of one.
func messages(rng *rand.Rand) []byte {
	greeting := zmtp.NewGreeting(1, 3)
	b := zmtp.AppendReady(bytes.Clone(greeting[:]), "DEALER", []byte("ps9"))
	for len(b) < 1<<20 {
		b = appendPush(b, rng, 1+rng.IntN(1000), 1+rng.IntN(30<<10))
	}
	return b
}

func appendPush(b []byte, rng *rand.Rand, keys, values int) []byte {
	meta := pslite.Meta{Head: 1, Request: true, Push: true, Timestamp: int32(rng.IntN(1000)), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	body := make([]byte, max(8*keys, values))
	for i := range body {
		body[i] = byte(rng.Uint32())
	}
	for i, frame := range [][]byte{meta.Append(nil, pslite.DMLC), body[:8*keys], body[:values]} {
		b = append(zmtp.AppendHeader(b, zmtp.FrameHeader(len(frame), i < 2)), frame...)
	}
	return b
}

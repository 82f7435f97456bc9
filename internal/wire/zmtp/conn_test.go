package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns the two ends of a loopback TCP connection, closed with the test.
func pair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client = require.Value(net.Dial("tcp", l.Addr().String()))(t)
	server = require.Value(l.Accept())(t)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// connected returns a DEALER and a ROUTER that have shaken hands.
func connected(t testing.TB) (dealer, router *Conn) {
	t.Helper()
	a, b := pair(t)
	var g errgroup.Group
	g.Go(func() (err error) {
		dealer, err = Handshake(context.Background(), a, Config{SocketType: "DEALER", Identity: []byte("ps9")})
		return err
	})
	g.Go(func() (err error) {
		router, err = Handshake(context.Background(), b, Config{SocketType: "ROUTER"})
		return err
	})
	require.NoError(t, g.Wait())
	return dealer, router
}

func TestConnCarriesMessages(t *testing.T) {
	dealer, router := connected(t)
	if p := router.Peer(); p.SocketType != "DEALER" || string(p.Identity) != "ps9" {
		t.Errorf("the router sees %+v", p)
	}
	var g errgroup.Group
	size := func(i int) int { return []int{0, 1, 50, 255, 256, 8191, 8192, 100_000, 3 << 20}[i%9] }
	const rounds = 90
	g.Go(func() error {
		for i := range rounds {
			body := bytes.Repeat([]byte{byte(i)}, size(i))
			if i%5 == 0 {
				if err := dealer.Flush(); err != nil {
					return err
				}
			}
			if err := dealer.Queue([]byte(fmt.Sprint(i)), body, nil, body[:len(body)/2]); err != nil {
				return err
			}
			clear(body) // it is ours again
		}
		return dealer.Flush()
	})
	var m Message
	for i := range rounds {
		require.NoError(t, router.ReadMessage(&m))
		body := bytes.Repeat([]byte{byte(i)}, size(i))
		want := [][]byte{[]byte(fmt.Sprint(i)), body, {}, body[:len(body)/2]}
		if len(m.Frames) != len(want) {
			t.Fatalf("message %d has %d frames", i, len(m.Frames))
		}
		for k := range want {
			if !bytes.Equal(m.Frames[k], want[k]) {
				t.Fatalf("message %d, frame %d differs", i, k)
			}
		}
	}
	require.NoError(t, g.Wait())
	dealer.nc.Close()
	if err := router.ReadMessage(&m); err != io.EOF {
		t.Errorf("after the peer closed: %v", err)
	}
}

func TestConnDealsWithCommands(t *testing.T) {
	dealer, router := connected(t)
	raw := appendPing(nil, 10, []byte("ctx"))
	raw = AppendCommand(raw, "FUTURE", []byte("ignored"))
	raw = append(AppendHeader(raw, FrameHeader(2, false)), "hi"...)
	raw = appendError(raw, "enough")
	require.Value(dealer.nc.Write(raw))(t)
	var m Message
	if err := router.ReadMessage(&m); err != nil || string(m.Frames[0]) != "hi" {
		t.Fatal(m.Frames, err)
	}
	var refused *PeerError
	if err := router.ReadMessage(&m); !errors.As(err, &refused) || refused.Reason != "enough" {
		t.Errorf("got %v, want the peer's reason", err)
	}
	want := AppendPong(nil, []byte("ctx"))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(dealer.nc, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("PING was answered with %q, %v", got, err)
	}
}

func TestConnCutOff(t *testing.T) {
	whole := append(AppendHeader(nil, FrameHeader(300, true)), make([]byte, 300)...)
	whole = append(AppendHeader(whole, FrameHeader(2, false)), "hi"...)
	for n := 1; n < len(whole); n += 37 {
		dealer, router := connected(t)
		require.Value(dealer.nc.Write(whole[:n]))(t)
		dealer.nc.Close()
		var m Message
		if err := router.ReadMessage(&m); err != io.ErrUnexpectedEOF {
			t.Errorf("after %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

// A frame that claims far more than comes must not be given memory for it.
func TestConnDoesNotTrustSizes(t *testing.T) {
	dealer, router := connected(t)
	raw := AppendHeader(nil, Header{Flags: Long, Size: 1 << 32})
	require.Value(dealer.nc.Write(append(raw, make([]byte, 1000)...)))(t)
	dealer.nc.Close()
	var m Message
	if err := router.ReadMessage(&m); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if cap(m.bufs[0]) > 4<<20 {
		t.Errorf("a claim of 4 GiB took %d bytes", cap(m.bufs[0]))
	}
}

func TestHandshakeRefuses(t *testing.T) {
	g := NewGreeting(1, 0)
	curve := g
	copy(curve[mechanismAt:], "CURVE")
	for _, tc := range []struct {
		name string
		says []byte
		want string
	}{
		{"HTTP", []byte("HTTP/1.1 400 Bad Request\r\n"), "another protocol"},
		{"CURVE", curve[:], `"CURVE" mechanism`},
		{"message before READY", append(bytes.Clone(g[:]), 0, 0), "before READY"},
		{"unknown command", AppendCommand(bytes.Clone(g[:]), "HELLO", nil), `"HELLO" before READY`},
		{"ERROR", appendError(bytes.Clone(g[:]), "go away"), `"go away"`},
		{"closed at once", nil, "unexpected EOF"},
		{"no socket type", AppendCommand(bytes.Clone(g[:]), CommandReady, nil), "Socket-Type"},
		{"bad property", AppendCommand(bytes.Clone(g[:]), CommandReady, []byte{1, 'x', 0xff, 0, 0, 0}), "claims"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pair(t)
			require.Value(b.Write(tc.says))(t)
			b.(*net.TCPConn).CloseWrite()
			_, err := Handshake(t.Context(), a, Config{SocketType: "DEALER"})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestHandshakeEndsWithItsContext(t *testing.T) {
	a, _ := pair(t) // the other side never says a word
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Handshake(ctx, a, Config{SocketType: "DEALER"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// FuzzHandshake lets a peer say anything; whatever it is, the handshake ends.
func FuzzHandshake(f *testing.F) {
	g := NewGreeting(1, 0)
	f.Add(AppendReady(bytes.Clone(g[:]), "ROUTER", nil))
	f.Add(appendError(bytes.Clone(g[:]), "no"))
	f.Add(g[:])
	f.Fuzz(func(t *testing.T, says []byte) {
		conn, err := Handshake(t.Context(), &scripted{Reader: bytes.NewReader(says)}, Config{SocketType: "DEALER"})
		if (conn == nil) == (err == nil) {
			t.Error(conn, err)
		}
		if conn != nil {
			var m Message
			for conn.ReadMessage(&m) == nil {
			}
		}
	})
}

// scripted is a connection whose peer says what Reader holds.
type scripted struct {
	net.Conn
	io.Reader
}

func (s *scripted) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s *scripted) Write(p []byte) (int, error) { return len(p), nil }
func (s *scripted) SetDeadline(time.Time) error { return nil }
func (s *scripted) RemoteAddr() net.Addr        { return &net.TCPAddr{} }

// appendPing appends a PING frame, which a Conn never sends.
func appendPing(dst []byte, ttl uint16, context []byte) []byte {
	return AppendCommand(dst, CommandPing, append(binary.BigEndian.AppendUint16(nil, ttl), context...))
}

// appendError appends an ERROR frame, which a Conn never sends.
func appendError(dst []byte, reason string) []byte {
	return AppendCommand(dst, CommandError, append([]byte{byte(len(reason))}, reason...))
}

package jobs

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/test/require"
)

// A link over which no letters go is dropped, and made again for the next letter.
func TestIdleLinksAreDropped(t *testing.T) {
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	dial := func(ctx context.Context, _ netip.Addr) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	j := require.Value(New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Dial: dial}))(t)
	j.linkIdle = 20 * time.Millisecond
	var g errgroup.Group
	letters := make(chan byte)
	ctx, stop := context.WithCancel(t.Context())
	g.Go(func() error { return j.Run(ctx) })
	g.Go(func() error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return nil // closed at the end
			}
			// One connection after the other: the next one comes when this one was dropped.
			for b := make([]byte, 1); ; {
				if _, err := io.ReadFull(conn, b); err != nil {
					break
				}
				letters <- b[0]
			}
			conn.Close()
		}
	})
	defer func() {
		stop()
		l.Close()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	links := func() int {
		j.linksMu.Lock()
		defer j.linksMu.Unlock()
		return len(j.links)
	}
	for n := range byte(3) {
		require.Eventually(t, "a letter arrives", func() bool {
			j.send(netip.MustParseAddr("198.18.0.2"), []byte{n}) // dropped until Run runs
			select {
			case got := <-letters:
				return got == n
			case <-time.After(time.Millisecond):
				return false
			}
		})
		require.Eventually(t, "the link is dropped", func() bool {
			select {
			case <-letters: // sent more than once
			default:
			}
			return links() == 0
		})
	}
}

// A letter does not go to a link that the other proxy has ended: a write to it would succeed, and
// the other site would wait for the next repetition.
func TestEndedLinkTakesNoLetter(t *testing.T) {
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	dial := func(ctx context.Context, _ netip.Addr) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	j := require.Value(New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Dial: dial}))(t)
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return j.Run(ctx) })
	defer func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	require.Eventually(t, "Run runs", func() bool { return j.start(func(context.Context) {}) })
	for n := range byte(3) {
		j.send(netip.MustParseAddr("198.18.0.2"), []byte{n})
		l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("letter %d went to a link that had ended: %v", n, err)
		}
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		got := make([]byte, 1)
		if _, err := io.ReadFull(conn, got); err != nil || got[0] != n {
			t.Fatalf("letter %d: %d arrives, %v", n, got, err)
		}
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		if _, err := conn.Read(got); err != io.EOF {
			t.Fatalf("the sender's end does not follow the link's: %v", err)
		}
	}
}

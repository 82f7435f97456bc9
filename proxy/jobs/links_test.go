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
)

// A link over which no letters go is dropped, and made again for the next letter.
func TestIdleLinksAreDropped(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, _ netip.Addr) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	j, err := New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
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
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: it has not come about", what)
			}
		}
	}
	for n := range byte(3) {
		until("a letter arrives", func() bool {
			j.send(netip.MustParseAddr("198.18.0.2"), []byte{n}) // dropped until Run runs
			select {
			case got := <-letters:
				return got == n
			case <-time.After(time.Millisecond):
				return false
			}
		})
		until("the link is dropped", func() bool {
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func(ctx context.Context, _ netip.Addr) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	j, err := New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return j.Run(ctx) })
	defer func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	for !j.start(func(context.Context) {}) { // until Run runs
		time.Sleep(time.Millisecond)
	}
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
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(got); err != io.EOF {
			t.Fatalf("the sender's end does not follow the link's: %v", err)
		}
	}
}

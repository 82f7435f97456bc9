package jobs

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// greetingOf is what a node says before messages.
func greetingOf(socket, identity string) []byte {
	g := zmtp.NewGreeting(0, 0)
	return zmtp.AppendReady(g[:], socket, []byte(identity))
}

// The end of a handshake is seen in whatever pieces it comes, and not before.
func TestHandshake(t *testing.T) {
	ready := greetingOf("ROUTER", "")
	for _, c := range []struct {
		name string
		said []byte
		done int // after this many bytes
	}{
		{"READY", append(bytes.Clone(ready), "\x00\x01x"...), len(ready)},
		{"another command before", append(zmtp.AppendCommand(bytes.Clone(ready[:64]), "OTHER", nil), ready[64:]...), len(ready) + 8},
		{"a message before", append(bytes.Clone(ready[:64]), "\x00\x01x"...), 66},
		{"no ZMTP", []byte("GET / HTTP/1.1"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for piece := 1; piece <= len(c.said); piece++ {
				var s handshake
				first := -1
				for at := 0; at < len(c.said); at += piece {
					if to := min(at+piece, len(c.said)); s.consume(c.said[at:to]) {
						if first >= 0 {
							t.Fatal("it ended twice")
						}
						first = to
					}
				}
				if want := min(len(c.said), (c.done+piece-1)/piece*piece); first != want || !s.done.Load() {
					t.Fatalf("in pieces of %d bytes it ended after %d, want %d", piece, first, want)
				}
			}
		})
	}
}

// libzmq ends a connection on which a message comes while it has not said READY itself:
// what the router puts in waits for that.
func TestNothingComesBeforeAHandshake(t *testing.T) {
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	message := appendMessage(nil, [][]byte{[]byte("said by the router")})
	hello, reply := greetingOf("DEALER", "ps8"), greetingOf("ROUTER", "")

	t.Run("to a process", func(t *testing.T) {
		process, tcp := connected(t)
		c := j.Inbound(tcp, netip.MustParseAddrPort("10.0.0.1:9002"), Scope{}, nil).(*answers)
		defer c.Close()
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
		c.enqueue(message)
		c.writing.Lock()
		err := c.writeQueued()
		c.writing.Unlock()
		got := make([]byte, len(hello)+len(message))
		process.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, _ := io.ReadFull(process, got); n != len(hello) || err != nil {
			t.Fatalf("%d bytes came before READY, want %d; %v", n, len(hello), err)
		}
		if _, err := process.Write(reply); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len(reply))); err != nil {
			t.Fatal(err)
		}
		process.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(process, got[:len(message)]); err != nil || !bytes.Equal(got[:len(message)], message) {
			t.Errorf("after READY came %q, %v", got[:len(message)], err)
		}
	})

	t.Run("from a process", func(t *testing.T) {
		process, tcp := connected(t)
		c := j.Outbound(tcp, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, "here").(*requests)
		defer c.Close()
		if _, err := process.Write(hello); err != nil {
			t.Fatal(err)
		}
		c.enqueue(message)
		reads := make(chan []byte, 4)
		go func() {
			defer close(reads)
			for {
				b := make([]byte, 1<<10)
				n, err := c.Read(b)
				if err != nil {
					return
				}
				reads <- b[:n]
			}
		}()
		var got []byte
		for len(got) < len(hello) {
			got = append(got, <-reads...)
		}
		select {
		case b := <-reads:
			t.Fatalf("before READY came %q", b)
		case <-time.After(100 * time.Millisecond):
		}
		if !bytes.Equal(got, hello) {
			t.Fatalf("%d bytes came before READY, want %d", len(got), len(hello))
		}
		if _, err := c.Write(reply); err != nil {
			t.Fatal(err)
		}
		if b := <-reads; !bytes.Equal(b, message) {
			t.Errorf("after READY came %q", b)
		}
	})
}

// A link that ends while its last messages are written to the process does not cut them:
// the end comes behind them.
func TestLinkEndsWhileMessagesAreWritten(t *testing.T) {
	j := jobsIn(t, t.TempDir())
	process, tcp := connected(t)
	// What is written must not fit into the buffers.
	if err := errors.Join(tcp.SetWriteBuffer(1<<16), process.(*net.TCPConn).SetReadBuffer(1<<16)); err != nil {
		t.Fatal(err)
	}
	down := j.Inbound(tcp, netip.MustParseAddrPort("10.0.0.1:9002"), Scope{}, nil).(*answers)
	defer down.Close()
	message := appendMessage(nil, [][]byte{(&pslite.Meta{Head: 7, Body: []byte("hello")}).Append(nil, pslite.DMLC)})
	said := slices.Concat(greetingOf("DEALER", "ps8"), bytes.Repeat(message, 8<<20/len(message)))
	written := make(chan error, 1)
	go func() {
		_, err := down.Write(said)
		written <- err
	}()
	for down.writing.TryLock() { // until the other goroutine writes, which ends only with the reader below
		down.writing.Unlock()
		if len(written) > 0 {
			t.Fatalf("written already: %v", <-written)
		}
		time.Sleep(time.Millisecond)
	}
	if err := down.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(process)
	if err != nil || !bytes.Equal(got, said) {
		t.Errorf("the process gets %d bytes, %v; want all %d and the end", len(got), err, len(said))
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// What waits for a handshake that never ends is not lost with its connection.
func TestAConnectionEndsBeforeItsHandshake(t *testing.T) {
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	message := appendMessage(nil, [][]byte{[]byte("said by the router")})
	process, tcp := connected(t)
	up := j.Outbound(tcp, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, "here").(*requests)
	defer up.Close()
	up.enqueue(message)
	if _, err := process.Write(greetingOf("DEALER", "ps9")); err != nil {
		t.Fatal(err)
	}
	process.Close()
	if b, err := io.ReadAll(up); err != nil || !bytes.Equal(b, greetingOf("DEALER", "ps9")) {
		t.Errorf("%d bytes came, %v", len(b), err)
	}
	if left := up.retire(); len(left) != 1 {
		t.Errorf("%d messages are left of what was to be put in, want 1", len(left))
	}
	_, tcp = connected(t)
	down := j.Inbound(tcp, netip.MustParseAddrPort("10.0.0.1:9002"), Scope{}, nil).(*answers)
	defer down.Close()
	if _, err := down.Write(greetingOf("DEALER", "ps8")); err != nil {
		t.Fatal(err)
	}
	down.enqueue(message)
	if _, err := down.Leave(); err != nil {
		t.Error(err)
	}
	if left := down.retire(); len(left) != 1 {
		t.Errorf("%d messages are left of what was to be put in, want 1", len(left))
	}
}

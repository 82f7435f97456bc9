package van

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// cutter forwards connections to an address and cuts them.
type cutter struct {
	l     net.Listener
	to    string
	conns chan net.Conn
}

func newCutter(t testing.TB, to string) *cutter {
	c := &cutter{l: listen(t), to: to, conns: make(chan net.Conn, 100)}
	go func() {
		for {
			in, err := c.l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
			c.conns <- in
		}
	}()
	return c
}

// Messages that a broken connection did not take go out on the next one, in
// order, and none twice.
func TestDealerReconnects(t *testing.T) {
	l := listen(t)
	got := make(chan string, 10_000)
	var conns errgroup.Group
	ctx, cancel := context.WithCancel(t.Context())
	conns.Go(func() error {
		for {
			nc, err := l.Accept()
			if err != nil {
				return nil
			}
			conns.Go(func() error {
				defer nc.Close()
				conn, err := zmtp.Handshake(ctx, nc, zmtp.Config{SocketType: "ROUTER"})
				if err != nil {
					return nil
				}
				stop := context.AfterFunc(ctx, func() { nc.Close() })
				defer stop()
				for {
					var m zmtp.Message
					if conn.ReadMessage(&m) != nil {
						return nil
					}
					got <- string(m.Frames[0])
				}
			})
		}
	})
	cut := newCutter(t, l.Addr().String())
	d := newDealer("a node", cut.l.Addr().String(), "ps9", Config{}.withDefaults())
	conns.Go(func() error { d.run(ctx); return nil })
	const rounds = 5
	var written atomic.Int64
	for round := range rounds {
		for i := range 20 {
			o := outgoing{frames: [][]byte{[]byte(fmt.Sprintf("%d.%02d", round, i))}, written: func() { written.Add(1) }}
			require.NoError(t, d.send(ctx, o))
		}
		for range 20 {
			<-got // all of the round have arrived before the cut
		}
		(<-cut.conns).Close()
		require.Eventually(t, "the connection's end is noticed", func() bool { return !d.connected.Load() })
	}
	drained, stop := context.WithTimeout(ctx, time.Minute)
	d.drain(drained)
	stop()
	if n := written.Load(); n != rounds*20 {
		t.Errorf("%d messages written, want %d", n, rounds*20)
	}
	if len(got) != 0 {
		t.Errorf("%d messages arrived twice", len(got))
	}
	cancel()
	l.Close()
	cut.l.Close()
	for len(cut.conns) > 0 {
		(<-cut.conns).Close()
	}
	_ = conns.Wait()
}

// What putBack keeps is exactly what was not wholly written.
func TestPutBackKeepsWhatWasNotWritten(t *testing.T) {
	d := newDealer("a node", "", "", Config{}.withDefaults())
	batch := func() []outgoing {
		return []outgoing{{frames: [][]byte{make([]byte, 10)}}, {frames: [][]byte{make([]byte, 300), {1}}}, {frames: [][]byte{{2}}}}
	}
	for written, want := range map[int64]int{0: 3, 11: 3, 12: 2, 12 + 309 + 2: 2, 12 + 309 + 3: 1, 12 + 309 + 3 + 3: 0} {
		d.waiting = nil
		for len(d.room) > 997 {
			<-d.room
		}
		d.putBack(batch(), written)
		if len(d.waiting) != want {
			t.Errorf("%d bytes written leave %d messages, want %d", written, len(d.waiting), want)
		}
	}
}

func TestQueueOrder(t *testing.T) {
	q := newQueue(10)
	for i, priority := range []int32{0, 0, 5, 1, 5, 0} {
		m := NewMessage(i)
		m.Meta.Priority = priority
		require.NoError(t, q.enqueue(t.Context(), m))
	}
	var got []int
	for range 6 {
		m := require.Value(q.get(t.Context()))(t)
		got = append(got, m.Recver)
	}
	if want := []int{2, 4, 3, 0, 1, 5}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	full := newQueue(1)
	_ = full.enqueue(t.Context(), NewMessage(1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := full.enqueue(ctx, NewMessage(2)); err == nil {
		t.Error("a full queue took a message")
	}
}

package proxy

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// libzmq's way with a connection: a message is written in pieces, and when the end
// is heard between two of them the rest is dropped.
const piece = 8 << 10

// worker makes requests like libzmq, each when the one before was answered.
type worker struct {
	conn    *net.TCPConn
	server  *net.TCPConn // at its end
	got     atomic.Int64 // requests, by the server
	told    atomic.Bool  // the end
	ended   chan struct{}
	answers chan struct{}
	sent    int
	cut     bool // a message of which only a part was written
}

func newWorker(t *testing.T, h *twoHosts) *worker {
	w := &worker{conn: h.dial(t), ended: make(chan struct{}), answers: make(chan struct{})}
	server := h.job.next(t)
	w.server = server
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := zmtp.Handshake(t.Context(), server, zmtp.Config{SocketType: "ROUTER"})
		var m zmtp.Message
		for err == nil {
			if err = c.ReadMessage(&m); err == nil {
				w.got.Add(1)
				select {
				case w.answers <- struct{}{}:
				case <-t.Context().Done():
				}
			}
		}
		if !errors.Is(err, io.EOF) && t.Context().Err() == nil {
			t.Errorf("the server's connection ends with %v", err)
		}
		server.Close()
	}()
	t.Cleanup(func() { w.conn.Close(); <-served })
	if _, err := zmtp.Handshake(t.Context(), w.conn, zmtp.Config{SocketType: "DEALER", Identity: []byte("ps9")}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.ended)
		w.conn.Read(make([]byte, 1))
		w.told.Store(true)
	}()
	return w
}

// unread is how many bytes have come that were not read.
func unread(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// request sends a push, and waits until it is answered, with the connection closed
// once it has received the end.
func (w *worker) request(t *testing.T) {
	meta := pslite.Meta{Request: true, Push: true, Timestamp: int32(w.sent), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	var b []byte
	for i, f := range [][]byte{meta.Append(nil, pslite.DMLC), make([]byte, 8*4*piece), make([]byte, 4*4*piece)} {
		b = append(zmtp.AppendHeader(b, zmtp.FrameHeader(len(f), i < 2)), f...)
	}
	for rest := b; len(rest) > 0; {
		if w.told.Load() {
			w.cut = len(rest) < len(b)
			w.conn.Close()
			return
		}
		n := min(piece, len(rest))
		w.conn.Write(rest[:n]) // an error is heard as the end
		rest = rest[n:]
	}
	w.sent++
	select {
	case <-w.answers:
	case <-w.ended:
		if unread(t, w.server) > 0 || int(w.got.Load()) == w.sent {
			t.Errorf("request %d had reached the server when its worker was told the end: it was not held", w.sent)
		}
		w.conn.Close()
		select {
		case <-w.answers:
		case <-time.After(time.Minute):
			t.Errorf("request %d did not reach the server", w.sent)
		}
	}
}

// A process that reads nothing any more keeps no proxy from ending, whatever was held
// for it.
func TestDrainEndsWhereNobodyReads(t *testing.T) {
	h := newTwoHosts(t, nil)
	client := h.dial(t)
	server := h.job.next(t)
	shaken := make(chan error, 1)
	var stopping atomic.Bool
	go func() {
		c, err := zmtp.Handshake(t.Context(), server, zmtp.Config{SocketType: "ROUTER"})
		shaken <- err
		var m zmtp.Message
		for err == nil && !stopping.Load() {
			err = c.ReadMessage(&m)
		}
	}()
	c, err := zmtp.Handshake(t.Context(), client, zmtp.Config{SocketType: "DEALER", Identity: []byte("ps9")})
	if err = errors.Join(err, <-shaken); err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		meta := pslite.Meta{Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
		for err == nil {
			err = c.WriteMessage(meta.Append(nil, pslite.DMLC), make([]byte, 16*piece), make([]byte, 8*piece))
		}
	}()
	eventually(t, "messages come", func() bool {
		all := h.server.conns.openConnections()
		return len(all) > 0 && all[0].pipe.ToJob.Counts().Messages > 10
	})
	stopping.Store(true)
	stopped := make(chan struct{})
	go func() { defer close(stopped); h.stopServer() }()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("the proxy does not end")
	}
	<-sent
}

// A worker that makes one request after the other receives the end of its
// connection when none is half sent: the answer it waits for is held meanwhile, and
// comes then. That a connection would outlive a kill changes nothing of it: its end is not
// taken for that of a broken link.
func TestDrainHoldsWhatClientsWaitFor(t *testing.T) {
	patient := func(_, server *Options) { server.Grace = time.Hour }
	t.Run("not kept", func(t *testing.T) { drainHolds(t, newTwoHosts(t, patient)) })
	t.Run("kept", func(t *testing.T) {
		h := keepingHosts(t, patient)
		drainHolds(t, h)
		if lost := h.server.kept.state().Lost + h.worker.kept.state().Lost; lost > 0 {
			t.Errorf("%d connections ended as ones whose link broke", lost)
		}
	})
}

func drainHolds(t *testing.T, h *twoHosts) {
	// No end is sent while the worker goes on, however slow it is.
	h.server.holdFor, h.server.restFor = time.Hour, time.Second
	w := newWorker(t, h)
	for range 20 {
		w.request(t)
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); h.stopServer() }()
	end := time.Now().Add(time.Minute)
	for !w.told.Load() && time.Now().Before(end) {
		w.request(t)
	}
	if !w.told.Load() {
		t.Error("the worker was not told the end of its connection")
	}
	if w.cut {
		t.Errorf("request %d was cut", w.sent)
	}
	w.conn.Close()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Error("the proxy does not end")
	}
}

// No end is sent while a client speaks, and all at once when none does.
func TestDrainWaitsForTheEndOfAMessage(t *testing.T) {
	h := newTwoHosts(t, nil)
	workers := []*worker{newWorker(t, h), newWorker(t, h)}
	for _, w := range workers {
		w.request(t)
	}
	conns := h.worker.conns.openConnections()
	inMessage := func() (n int) {
		for _, c := range conns {
			if c.pipe.ToFar.Counts().InMessage {
				n++
			}
		}
		return n
	}
	meta := pslite.Meta{Request: true, Push: true, Timestamp: 1, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	var message []byte
	for i, f := range [][]byte{meta.Append(nil, pslite.DMLC), make([]byte, 8), make([]byte, 1<<20)} {
		message = append(zmtp.AppendHeader(message, zmtp.FrameHeader(len(f), i < 2)), f...)
	}
	message, rest := message[:len(message)-piece], message[len(message)-piece:]
	if _, err := workers[0].conn.Write(message); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a message is half sent", func() bool { return inMessage() == 1 })
	d := drain{farewell: map[*connection]bool{}, late: time.Now().Add(time.Hour)}
	for range 3 {
		d.sendEnds(conns, time.Now())
	}
	if len(d.farewell) > 0 {
		t.Fatalf("%d were told the end while one spoke", len(d.farewell))
	}
	if _, err := workers[0].conn.Write(rest); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are told the end", func() bool {
		d.sendEnds(conns, time.Now())
		if len(d.farewell) == 1 {
			t.Fatal("one was told the end before the other")
		}
		return workers[0].told.Load() && workers[1].told.Load()
	})
	for _, w := range workers {
		w.conn.Close()
	}
	<-workers[0].answers
}

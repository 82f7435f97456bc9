package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
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
	t.Helper()
	return shakeHands(t, h.dial(t), h.job.next(t))
}

// shakeHands makes a worker and its server of the two ends of a connection.
func shakeHands(t *testing.T, conn, server *net.TCPConn) *worker {
	t.Helper()
	w := &worker{conn: conn, server: server, ended: make(chan struct{}), answers: make(chan struct{})}
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
	require.Value(zmtp.Handshake(t.Context(), w.conn, zmtp.Config{SocketType: "DEALER", Identity: []byte("ps9")}))(t)
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
	require.NoError(t, err)
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
			err = c.Queue(meta.Append(nil, pslite.DMLC), make([]byte, 16*piece), make([]byte, 8*piece))
		}
	}()
	require.Eventually(t, "messages come", func() bool {
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
	require.Value(workers[0].conn.Write(message))(t)
	require.Eventually(t, "a message is half sent", func() bool { return inMessage() == 1 })
	never := time.Now().Add(time.Hour)
	d := drain{farewell: map[*connection]bool{}, late: never, last: never}
	for range 3 {
		d.sendEnds(conns, time.Now())
	}
	if len(d.farewell) > 0 {
		t.Fatalf("%d were told the end while one spoke", len(d.farewell))
	}
	require.Value(workers[0].conn.Write(rest))(t)
	require.Eventually(t, "both are told the end", func() bool {
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

// A connection that was in its handshake when the proxy began to end is held as soon as only
// its client speaks. Otherwise nobody would fall silent.
func TestDrainHoldsWhoComesLast(t *testing.T) {
	h := newTwoHosts(t, nil)
	h.server.holdFor, h.server.restFor = time.Hour, time.Second
	conn, server := h.dial(t), h.job.next(t)
	require.Eventually(t, "the connection is carried", func() bool { return h.server.conns.active() == 1 })
	conns := h.server.conns.openConnections()
	began := time.Now()
	d := h.server.newDrain(began, 4*time.Hour)
	if d.hold(conns, began); len(d.held) > 0 {
		t.Fatal("a connection is held of which it is not known who speaks on it")
	}
	w := shakeHands(t, conn, server)
	over, looked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looked)
		for look := time.Tick(5 * time.Millisecond); ; {
			select {
			case <-over:
				return
			case now := <-look:
				d.advance(conns, now)
			}
		}
	}()
	t.Cleanup(func() { close(over); <-looked })
	for end := began.Add(time.Minute); !w.told.Load() && time.Now().Before(end); {
		w.request(t)
	}
	if !w.told.Load() || w.cut {
		t.Errorf("after %d requests: told the end %v, while it sent one %v", w.sent, w.told.Load(), w.cut)
	}
}

// A client that does not pause is sent the end between two messages before the grace is
// over, and all that it has sent arrives.
func TestDrainEndsWhoDoesNotPause(t *testing.T) {
	in, job := listen(t, workerHost), newServer(t)
	p, _ := start(t, Options{}, []Listener{{Listener: in, Destination: Fixed(job.addr())}})
	p.restFor, p.pauseFor = time.Hour, time.Hour // however slow it is, it does not pause
	w := newWorker(t, &twoHosts{job: job, in: in})
	meta := pslite.Meta{Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	var message []byte // libzmq writes one as short at once
	for i, f := range [][]byte{meta.Append(nil, pslite.DMLC), make([]byte, 80), make([]byte, 40)} {
		message = append(zmtp.AppendHeader(message, zmtp.FrameHeader(len(f), i < 2)), f...)
	}
	spoken := make(chan struct{})
	go func() {
		defer close(spoken)
		defer w.conn.Close()
		for !w.told.Load() {
			if _, err := w.conn.Write(message); err != nil {
				t.Errorf("request %d: %v", w.sent, err)
				return
			}
			w.sent++
			select {
			case <-w.answers:
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(func() { w.conn.Close(); <-spoken })
	require.Eventually(t, "requests are answered", func() bool { return w.got.Load() > 20 })
	conns := p.conns.openConnections()
	d := p.newDrain(time.Now(), time.Hour)
	for _, now := range []time.Time{d.late.Add(-time.Second), d.late.Add(time.Second), d.last.Add(-time.Second)} {
		if d.advance(conns, now); len(d.farewell) > 0 {
			t.Fatal("a client is sent the end that has not paused")
		}
	}
	require.Eventually(t, "it is sent the end", func() bool {
		d.advance(conns, d.last.Add(time.Second))
		return w.told.Load()
	})
	<-spoken
	require.Eventually(t, "the connection has ended", func() bool { return p.conns.active() == 0 })
	if got := int(w.got.Load()); got != w.sent {
		t.Errorf("%d of %d requests have arrived", got, w.sent)
	}
	for r, n := range p.conns.sums().errors {
		t.Errorf("%d connections failed: %s", n, r)
	}
}

// However little time is left, connections are let go of before what remains is reset.
func TestDrainEndsBeforeTheGraceIsOver(t *testing.T) {
	p := &Proxy{holdFor: holdFor, restFor: restFor, pauseFor: pauseFor}
	now := time.Now()
	for _, left := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 10 * time.Second, time.Hour} {
		d := p.newDrain(now, left)
		if !now.Before(d.late) || !d.late.Before(d.last) || !d.last.Before(now.Add(left)) {
			t.Errorf("with %v left it holds for %v and waits for pauses for %v", left, d.late.Sub(now), d.last.Sub(now))
		}
	}
}

// A connection that waits for a proxy which is away, or does not answer, is reset when its own
// proxy ends: it has carried nothing. Set up later it would begin to speak when the proxy is
// about to be gone.
func TestDrainResetsWhatIsNotSetUp(t *testing.T) {
	away, silent := listen(t, serverHost), newServer(t)
	away.Close()
	for _, c := range []struct {
		name  string
		mesh  net.Addr // of the destination's proxy
		waits func(p *Proxy, host netip.Addr) bool
	}{
		{"away", away.Addr(), func(p *Proxy, host netip.Addr) bool {
			p.peers.mu.Lock()
			defer p.peers.mu.Unlock()
			return !p.peers.hosts[host].first.IsZero()
		}},
		{"silent", silent.Addr(), func(*Proxy, netip.Addr) bool { return len(silent.conns) > 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const patience = 20 * time.Second // in which nothing must be waited for
			in, job := listen(t, workerHost), newServer(t)
			host := job.addr().Addr()
			p, stop := start(t, Options{MeshPort: addrPort(c.mesh).Port(), PeerPatience: patience, HelloTimeout: patience, Grace: 3 * patience},
				[]Listener{{Listener: in, Destination: Fixed(job.addr())}})
			client := require.Value(net.Dial("tcp", in.Addr().String()))(t)
			defer client.Close()
			require.Eventually(t, "the connection is being set up", func() bool { return c.waits(p, host) })
			stop()
			if n := p.passes.state().Drained[drainNotSetUp]; n != 1 || len(job.conns) > 0 {
				t.Errorf("%d connections are counted as not set up, want 1; %d have reached the process", n, len(job.conns))
			}
			client.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := client.Read(make([]byte, 1)); !reason.IsReset(err) {
				t.Errorf("the client got %v, want a reset", err)
			}
			if try, why := p.peers.try(host); !try {
				t.Errorf("the next connection to the host would go direct: %s", why)
			}
			for r, n := range p.conns.sums().errors {
				t.Errorf("%d connections failed: %s", n, r)
			}
		})
	}
}

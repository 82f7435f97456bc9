package relay

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/test/require"
)

// keptConn is a kept connection that runs, with a process at one end and a proxy at the other.
type keptConn struct {
	*Conn
	process, proxy *net.TCPConn
	wrote          atomic.Int64 // bytes that were reported as written to the process
	came           chan int     // what FarEnded was told
	ended          chan error   // of Run
}

func newKeptConn(t *testing.T) *keptConn {
	t.Helper()
	if err := keep.Supported(); err != nil {
		require.Missing(t, "%v", err)
	}
	k := &keptConn{came: make(chan int, 1), ended: make(chan error, 1)}
	process, job := tcpPair(t)
	far, proxy := tcpPair(t)
	k.process, k.proxy = process, proxy
	page := require.Value(keep.NewPage(keep.Meta{}))(t)
	over := make(chan struct{})
	t.Cleanup(func() { <-over; page.Close() })
	window, err := keep.NewWindow(job, page, 0, func(keep.Reason) {})
	if err != nil {
		close(over)
		t.Fatal(err)
	}
	k.Conn = &Conn{Job: job, Far: far, Sender: &plainCodec{never: true}, Receiver: &plainCodec{}}
	k.Keep(&Keeping{
		Window:    window,
		Wrote:     func(n int) { k.wrote.Add(int64(n)) },
		Ended:     func() {},
		FarEnded:  func(came int) error { k.came <- came; return nil },
		Closed:    func() {},
		FarClosed: func(*Keeping) error { return nil },
	})
	go func() {
		defer close(over)
		k.ended <- k.Run(t.Context(), NewMemory(64<<20))
	}()
	return k
}

// begin has the proxy send what a stream begins with, and the process read that.
func (k *keptConn) begin(t *testing.T) (n int) {
	t.Helper()
	b := greetingAndReady("DEALER")
	require.Value(k.proxy.Write(b))(t)
	require.Value(io.ReadFull(k.process, make([]byte, len(b))))(t)
	return len(b)
}

// broken waits for Run to end, and checks that another Conn can go on with the process.
func (k *keptConn) broken(t *testing.T) {
	t.Helper()
	select {
	case err := <-k.ended:
		if !errors.Is(err, ErrBroken) {
			t.Fatalf("the connection ended with %v, want %v", err, ErrBroken)
		}
	case <-time.After(time.Minute):
		t.Fatal("no direction has noticed that the link is broken")
	}
	k.Break() // one that comes late
	require.Value(k.process.Write([]byte("word")))(t)
	if _, err := io.ReadFull(k.Job, make([]byte, 4)); err != nil {
		t.Errorf("reading from the process afterwards: %v", err)
	}
}

// What is held for the process counts as come when the stream ends, so that its end is not taken
// for a broken link, and as written once it is.
func TestHeldBytesAreAccountedFor(t *testing.T) {
	k := newKeptConn(t)
	begun := k.begin(t)
	for k.wrote.Load() < int64(begun) {
		runtime.Gosched()
	}
	k.Hold()
	message := push(nil, rand.New(rand.NewPCG(1, 1)), 3, 40, false)
	require.Value(k.proxy.Write(message))(t)
	require.NoError(t, k.proxy.CloseWrite())
	if came := <-k.came; came != begun+len(message) {
		t.Errorf("the stream ended after %d bytes, %d of which were held; want %d", came, len(message), begun+len(message))
	}
	if n := k.wrote.Load(); n != int64(begun) {
		t.Errorf("%d bytes are reported as written while a message is held, want %d", n, begun)
	}
	k.Release()
	if got, err := io.ReadAll(k.process); err != nil || !bytes.Equal(got, message) {
		t.Errorf("%d bytes came after the release, want %d, or others: %v", len(got), len(message), err)
	}
	k.process.Close()
	if err := <-k.ended; err != nil {
		t.Errorf("the connection ended with %v", err)
	}
	if n := k.wrote.Load(); n != int64(begun+len(message)) {
		t.Errorf("%d bytes are reported as written, want %d", n, begun+len(message))
	}
}

// A Break is noticed where the far stream has ended and the process says nothing: then no
// direction uses the link.
func TestBreakAfterTheEndOfTheFarStream(t *testing.T) {
	k := newKeptConn(t)
	k.begin(t)
	require.NoError(t, k.proxy.CloseWrite())
	if _, err := k.process.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("the process got %v, want the end of the stream", err)
	}
	k.Break()
	k.broken(t)
}

// A Break is noticed where the process says nothing and reads nothing.
func TestBreakWhileTheProcessIsBusy(t *testing.T) {
	k := newKeptConn(t)
	k.begin(t)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		k.proxy.Write(push(nil, rand.New(rand.NewPCG(1, 1)), 3, 64<<20, false))
	}()
	for Unsent(k.Job) == 0 {
		runtime.Gosched()
	}
	k.Break()
	k.broken(t)
	<-sent
}

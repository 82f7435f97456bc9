package spare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// site is a server of a store that can be restarted, and to which links can be made.
type site struct {
	t        *testing.T
	path     string
	opts     StoreOptions
	buffered bool // links are of TCP

	mu     sync.Mutex // guards what follows
	store  *Store     // nil between restarts
	server *Server
	ctx    context.Context
	cancel context.CancelFunc
	links  sync.WaitGroup
}

func newSite(t *testing.T, o StoreOptions) *site {
	s := &site{t: t, path: filepath.Join(t.TempDir(), "store"), opts: o}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *site) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = mustOpen(s.t, s.path, s.opts)
	s.server = NewServer(s.store, ServerOptions{})
	s.ctx, s.cancel = context.WithCancel(context.Background())
}

// stop ends all links, and leaves the store.
func (s *site) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return
	}
	s.cancel()
	s.links.Wait()
	if err := s.store.Close(); err != nil {
		s.t.Error(err)
	}
	s.store = nil
}

// release takes the store away from the server, as a proxy does that ends: links stay until their next request.
func (s *site) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.server.Release().Close(); err != nil {
		s.t.Error(err)
	}
}

// takeUp gives the store to another server, after release.
func (s *site) takeUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = mustOpen(s.t, s.path, s.opts)
	s.server = NewServer(s.store, ServerOptions{})
}

// loopback returns both ends of a connection.
func loopback() (here, there net.Conn, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	if here, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		return nil, nil, err
	}
	if there, err = listener.Accept(); err != nil {
		here.Close()
	}
	return here, there, err
}

// dial returns a link to the server. Unless it is buffered, nothing is ever on its way: who writes waits for
// who reads.
func (s *site) dial(context.Context) (Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return Link{}, errors.New("the server is away")
	}
	here, there := net.Pipe()
	if s.buffered {
		var err error
		if here, there, err = loopback(); err != nil {
			return Link{}, err
		}
	}
	server, ctx := s.server, s.ctx
	s.links.Go(func() {
		if err := server.Serve(ctx, there); err != nil {
			s.t.Error(err)
		}
	})
	return Link{here, true}, nil
}

// dialAfter returns a dial that waits for a gate.
func (s *site) dialAfter(gate <-chan struct{}) func(context.Context) (Link, error) {
	return func(ctx context.Context) (Link, error) {
		select {
		case <-gate:
			return s.dial(ctx)
		case <-ctx.Done():
			return Link{}, ctx.Err()
		}
	}
}

// weak is a link that breaks after so many bytes in either direction.
type weak struct {
	net.Conn
	mu   sync.Mutex
	left int
}

var errWeak = errors.New("the link broke")

func (w *weak) spend(n int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n = min(n, w.left); n == 0 {
		w.Conn.Close()
		return 0, errWeak
	}
	w.left -= n
	return n, nil
}

func (w *weak) Read(b []byte) (int, error) {
	n, err := w.spend(min(len(b), 1000))
	if err != nil {
		return 0, err
	}
	got, err := w.Conn.Read(b[:n])
	return got, err
}

func (w *weak) Write(b []byte) (written int, err error) {
	for written < len(b) && err == nil {
		var n int
		if n, err = w.spend(len(b) - written); err == nil {
			n, err = w.Conn.Write(b[written : written+n])
			written += n
		}
	}
	return written, err
}

// runClient runs a client until the test ends.
func runClient(t *testing.T, o ClientOptions) *Client {
	c := NewClient(o)
	c.pause = 0
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

// waitFor waits until something is so.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// recorder notes answers by worker and timestamp.
type recorder struct {
	mu  sync.Mutex
	got map[Ask]Answer
	n   int
}

func (r *recorder) note(a Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.got == nil {
		r.got = map[Ask]Answer{}
	}
	r.got[a.Request.ask()] = a
	r.n++
}

// count returns how many answers there are.
func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

func (r *recorder) wait(t *testing.T, worker, timestamp int32) Answer {
	t.Helper()
	var a Answer
	waitFor(t, fmt.Sprintf("request %d of worker %d is answered", timestamp, worker), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		var ok bool
		a, ok = r.got[Ask{worker, timestamp}]
		return ok
	})
	return a
}

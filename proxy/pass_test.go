package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/keep"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// estate is an heir that holds what a proxy leaves for the test to give to the next.
type estate struct {
	within time.Duration // for so long; 0: a minute
	room   int           // so many more; 0: 100
	ends   error         // it is about to end, too
	mu     sync.Mutex
	left   []leftover
}

type leftover struct {
	id            uint64
	socket, state *os.File
}

func (e *estate) Holds() (int, time.Duration) {
	return cmp.Or(e.room, 100), cmp.Or(e.within, time.Minute)
}

func (e *estate) Leave(id uint64, socket *net.TCPConn, state *os.File) error {
	s, err := socket.File()
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(state.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left = append(e.left, leftover{id, s, os.NewFile(uintptr(fd), "state")})
	return nil
}

func (e *estate) Returned(uint64) {}

func (e *estate) Stays(context.Context) error { return e.ends }

// give gives all that was left to a proxy.
func (e *estate) give(p *Proxy) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.left {
		p.TakeKept(l.id, l.socket, l.state)
	}
	n = len(e.left)
	e.left = nil
	p.Settled()
	return n
}

// replaceable is a proxy of a host that is replaced by another of the same options.
type replaceable struct {
	t       *testing.T
	options func() Options
	mesh    string // where links arrive; empty: nowhere
	estate  estate
	endsIn  time.Duration // for so long it may take to end
	now     *Proxy
	stop    func()
}

func (r *replaceable) begin() {
	var mesh []net.Listener
	if r.mesh != "" {
		l := require.Value(net.Listen("tcp", r.mesh))(r.t)
		mesh = append(mesh, l)
	}
	o := r.options()
	o.Grace = 20 * time.Second
	// As in a daemon the heir is known before links come: until all that was left has been
	// given, the proxy says that it is starting.
	r.now, r.stop = startAfter(r.t, o, func(p *Proxy) {
		p.LeaveTo(&r.estate)
		p.passes.agentStays, p.passes.endsWithin = 0, r.endsIn
	}, nil, mesh...)
}

// forward has connections to a listener go on to another, until the first is closed.
func forward(l, to net.Listener) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		conn, err := net.Dial("tcp", to.Addr().String())
		if err != nil {
			from.Close()
			continue
		}
		go func() { io.Copy(conn, from); conn.Close() }()
		go func() { io.Copy(from, conn); from.Close() }()
	}
}

// replaceableHosts are two hosts, whose proxies can be replaced, and a connection.
func replaceableHosts(t *testing.T, codecs func() []relay.Codec) (worker, server *replaceable, client, process *net.TCPConn) {
	t.Helper()
	job, in, mesh := newServer(t), listen(t, workerHost), listen(t, serverHost)
	at := mesh.Addr().String()
	port := addrPort(mesh.Addr()).Port()
	mesh.Close()
	options := func() Options { return Options{MeshPort: port, Codecs: codecs()} }
	worker, server = &replaceable{t: t, options: options}, &replaceable{t: t, options: options, mesh: at}
	server.begin()
	o := options()
	o.Grace = 20 * time.Second
	worker.now, worker.stop = start(t, o, []Listener{{Listener: in, Destination: Fixed(job.addr())}})
	worker.now.LeaveTo(&worker.estate)
	worker.now.passes.agentStays, worker.now.passes.endsWithin = 0, 0
	h := &twoHosts{job: job, in: in}
	client = h.dial(t)
	return worker, server, client, job.next(t)
}

// Whichever proxy is replaced, or both at once, again and again, a connection on which
// both ends speak loses no byte, gets none twice and is not reset.
func TestReplacedProxiesHandOver(t *testing.T) {
	for _, c := range []struct {
		name  string
		which func(i int, worker, server *replaceable) []*replaceable
	}{
		{"worker's", func(_ int, w, _ *replaceable) []*replaceable { return []*replaceable{w} }},
		{"server's", func(_ int, _, s *replaceable) []*replaceable { return []*replaceable{s} }},
		{"both", func(_ int, w, s *replaceable) []*replaceable { return []*replaceable{w, s} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			worker, server, client, process := replaceableHosts(t, compactOnly)
			rng := rand.New(rand.NewPCG(1, 2))
			streams := [2][]byte{messages(rng), messages(rng)}
			var both sync.WaitGroup
			for i, way := range [][2]net.Conn{{client, process}, {process, client}} {
				both.Go(func() { exchange(t, way[0], way[1], streams[i], uint64(i)) })
			}
			defer func() { // also where the test ends early
				client.Close()
				process.Close()
				both.Wait()
			}()
			over := make(chan struct{})
			go func() { both.Wait(); close(over) }()
			n, lost := 0, uint64(0)
			for done := false; !done; n++ {
				select {
				case <-over:
					done = true
					continue
				case <-time.After(time.Duration(rng.IntN(100)) * time.Millisecond):
				}
				if n%4 > 0 { // else perhaps before they go on
					require.Eventually(t, "both go on, or all is over", func() bool {
						return worker.now.conns.active() == 1 && server.now.conns.active() == 1 || closed(over)
					})
				}
				replaced := c.which(n, worker, server)
				var ending sync.WaitGroup
				for _, r := range replaced {
					ending.Go(r.stop)
				}
				ending.Wait()
				for _, r := range replaced {
					lost += r.now.passes.state().Lost
					r.begin()
					r.estate.give(r.now)
				}
			}
			for _, r := range []*replaceable{worker, server} {
				require.Eventually(t, "the connection is over", func() bool { return r.now.conns.active() == 0 })
				lost += r.now.passes.state().Lost
			}
			if t.Logf("replaced %d times", n); n < 8 || lost > 0 {
				t.Errorf("replaced %d times, %d connections lost", n, lost)
			}
		})
	}
}

// A proxy that begins while the agent is away goes on with what was left to it: whose
// connections these are is known.
func TestTakenOverWhileTheAgentIsAway(t *testing.T) {
	worker, server, client, process := replaceableHosts(t, compactOnly)
	rng := rand.New(rand.NewPCG(1, 2))
	first := messages(rng)
	for _, way := range [][2]*net.TCPConn{{client, process}, {process, client}} {
		go way[0].Write(first)
		require.Value(io.ReadFull(way[1], make([]byte, len(first))))(t)
	}
	with, away := server.options, &agentOf{err: errors.New("no agent")}
	server.options = func() Options {
		o := with()
		o.Reach.Owner = away.owner
		return o
	}
	server.stop()
	server.begin()
	server.estate.give(server.now)
	more := appendPush(nil, rng, 10, 100)
	go client.Write(more)
	if _, err := io.ReadFull(process, make([]byte, len(more))); err != nil {
		t.Error(err)
	}
	for _, r := range []*replaceable{worker, server} {
		if n := r.now.passes.state().Lost; n > 0 {
			t.Errorf("%d connections were lost", n)
		}
	}
	client.Close()
	process.Close()
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Connections that the agent has are not counted against what room it has left, nor is one
// that has gone on over another link.
func TestAgentsRoomIsCountedOnce(t *testing.T) {
	worker, _, client, process := replaceableHosts(t, compactOnly)
	rng := rand.New(rand.NewPCG(1, 2))
	hello := messages(rng)
	for _, way := range [][2]*net.TCPConn{{client, process}, {process, client}} {
		go way[0].Write(hello)
		require.Value(io.ReadFull(way[1], make([]byte, len(hello))))(t)
	}
	s := &worker.now.passes
	worker.estate.room = 1
	s.mu.Lock()
	s.counts.Left = 7 // before, and not in that room any more
	s.mu.Unlock()
	for range 2 {
		require.Eventually(t, "the connection is to be handed over", func() bool {
			open := worker.now.conns.openConnections()
			if len(open) != 1 {
				return false // it is between two links
			}
			passes, _ := s.ends(open[0])
			return passes
		})
		// This proxy does not end after all.
		require.Eventually(t, "it goes on over another link", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.asked) == 0
		})
	}
	more := appendPush(nil, rng, 10, 100)
	go client.Write(more)
	if _, err := io.ReadFull(process, make([]byte, len(more))); err != nil {
		t.Error(err)
	}
	client.Close()
	process.Close()
}

// A connection whose next proxy does not come is reset at both ends, once it is late.
func TestNobodyTakesOver(t *testing.T) {
	worker, server, client, process := replaceableHosts(t, compactOnly)
	hello := messages(rand.New(rand.NewPCG(1, 2)))
	for _, way := range [][2]*net.TCPConn{{client, process}, {process, client}} {
		go way[0].Write(hello)
		require.Value(io.ReadFull(way[1], make([]byte, len(hello))))(t)
	}
	server.estate.within = time.Second
	server.stop()
	if n := len(server.estate.left); n != 1 {
		t.Fatalf("%d connections were left, want 1", n)
	}
	require.NoError(t, client.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if _, err := client.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the client's connection did not wait: %v", err)
	}
	client.SetReadDeadline(time.Time{})
	if _, err := client.Read(make([]byte, 1)); !reason.IsReset(err) {
		t.Errorf("the client got %v, want a reset", err)
	}
	require.Eventually(t, "it is counted", func() bool { return worker.now.passes.state().Lost == 1 && worker.now.count(reason.NotKept) == 1 })
	// A proxy that comes later resets its end at once.
	server.begin()
	server.estate.give(server.now)
	if _, err := process.Read(make([]byte, 1)); !reason.IsReset(err) {
		t.Errorf("the process got %v, want a reset", err)
	}
}

// While the next proxy of the other host is there and cannot be reached, a connection
// waits for longer than it would for a next proxy.
func TestCutOffWhileHandedOver(t *testing.T) {
	worker, server, client, process := replaceableHosts(t, compactOnly)
	rng := rand.New(rand.NewPCG(1, 2))
	hello := messages(rng)
	for _, way := range [][2]*net.TCPConn{{client, process}, {process, client}} {
		go way[0].Write(hello)
		require.Value(io.ReadFull(way[1], make([]byte, len(hello))))(t)
	}
	server.estate.within = time.Second
	server.stop()
	ended := time.Now()
	cut := require.Value(net.Listen("tcp", server.mesh))(t) // between the two proxies
	mesh := listen(t, serverHost)
	o := server.options()
	o.Grace = 20 * time.Second
	server.now, server.stop = start(t, o, nil, mesh)
	server.estate.give(server.now)
	require.NoError(t, cut.(*net.TCPListener).SetDeadline(ended.Add(server.estate.within)))
	silent, err := cut.Accept() // and nobody answers
	if err != nil {
		t.Fatalf("the worker's proxy does not dial: %v; %d lost", err, worker.now.passes.state().Lost)
	}
	<-time.After(2*server.estate.within - time.Since(ended))
	require.NoError(t, cut.(*net.TCPListener).SetDeadline(time.Time{}))
	t.Cleanup(func() { cut.Close() })
	go forward(cut, mesh)
	silent.Close()
	more := appendPush(nil, rng, 10, 100)
	go client.Write(more)
	if _, err := io.ReadFull(process, make([]byte, len(more))); err != nil {
		t.Errorf("the connection does not go on: %v; lost: %d at the worker's proxy, %d at the server's", err, worker.now.passes.state().Lost, server.now.passes.state().Lost)
	}
	client.Close()
	process.Close()
}

// Nobody but the proxies of a connection goes on with it.
func TestOthersDoNotTakeOver(t *testing.T) {
	worker, server, client, process := replaceableHosts(t, compactOnly)
	hello := messages(rand.New(rand.NewPCG(1, 2)))
	go client.Write(hello)
	require.Value(io.ReadFull(process, make([]byte, len(hello))))(t)
	c := server.now.conns.openConnections()[0]
	ask := func(change func(h *link.Hello, o *keep.Pass)) error {
		h := &link.Hello{Instance: worker.now.instance, ID: 99, Client: c.client, Destination: c.destination}
		o := keep.Pass{Kind: keep.Resume, Session: c.transit.Session}
		if change != nil {
			change(h, &o)
		}
		h.Offers = append(h.Offers, passOffer(o))
		far, _, err := worker.now.links.Dial(t.Context(), server.mesh, h)
		if err == nil {
			far.Close()
		}
		return err
	}
	if err := ask(nil); reason.Of(err) != reason.Starting {
		t.Errorf("while it has a link: %v", err)
	}
	for name, change := range map[string]func(h *link.Hello, o *keep.Pass){
		"another session": func(_ *link.Hello, o *keep.Pass) { o.Session[3]++ },
		"to forget":       func(_ *link.Hello, o *keep.Pass) { o.Session[3]++; o.Kind = keep.Forget },
	} {
		server.now.Settled()
		if err := ask(change); reason.Of(err) != reason.NotKept {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A proxy that knows nothing of it is linked with as before, as dialer and as acceptor,
// and its connections are ended in order.
func TestOlderProxies(t *testing.T) {
	older := func(all []link.Offer) []link.Offer {
		return slices.DeleteFunc(all, func(o link.Offer) bool { return o.Codec == keep.PassName })
	}
	t.Run("dials", func(t *testing.T) {
		_, server, client, _ := replaceableHosts(t, compactOnly)
		require.Eventually(t, "the connection is known", func() bool { return server.now.conns.active() == 1 })
		c := server.now.conns.openConnections()[0]
		h := &link.Hello{ID: 7, Client: c.client, Destination: c.destination, Offers: older(server.now.offers())}
		far, answer, err := server.now.links.Dial(t.Context(), server.mesh, h)
		require.NoError(t, err)
		defer far.Close()
		if _, ok := passOffered(answer.Accepted); ok || len(answer.Accepted) == 0 {
			t.Errorf("it is answered %+v", answer.Accepted)
		}
		client.Close()
	})
	t.Run("accepts", func(t *testing.T) {
		in, mesh, job := listen(t, workerHost), listen(t, serverHost), newServer(t)
		p, stop := start(t, Options{MeshPort: addrPort(mesh.Addr()).Port(), Codecs: compactOnly(), Grace: 20 * time.Second},
			[]Listener{{Listener: in, Destination: Fixed(job.addr())}})
		p.LeaveTo(new(estate))
		client := (&twoHosts{in: in}).dial(t)
		conn := require.Value(mesh.Accept())(t)
		defer conn.Close()
		acceptor := link.Acceptor{HelloTimeout: time.Minute}
		far, h, err := acceptor.Accept(t.Context(), conn)
		require.NoError(t, err)
		require.NoError(t, link.Reply(far, &link.Answer{Accepted: older(h.Offers)}))
		require.Eventually(t, "the connection is carried", func() bool { return p.conns.active() == 1 })
		go func() { // ends when it receives the end
			io.Copy(io.Discard, far)
			far.Close()
		}()
		go func() {
			io.Copy(io.Discard, client)
			client.Close()
		}()
		stop()
		if n := p.passes.state(); n.Drained[drainOldPeer] != 1 || n.Left > 0 {
			t.Errorf("%+v, want one that was drained", n)
		}
	})
}

// Where the agent is about to end as well, nothing is left to it: the connection is
// drained, and ends when both ends have said all.
func TestNothingIsLeftToAnAgentThatEnds(t *testing.T) {
	worker, _, client, process := replaceableHosts(t, compactOnly)
	rng := rand.New(rand.NewPCG(1, 2))
	streams := [2][]byte{messages(rng), messages(rng)}
	worker.estate.ends = errors.New("the agent is shutting down too")
	stopped := make(chan struct{})
	go func() { worker.stop(); close(stopped) }()
	var both sync.WaitGroup
	for i, way := range [][2]net.Conn{{client, process}, {process, client}} {
		both.Go(func() { exchange(t, way[0], way[1], streams[i], uint64(i)) })
	}
	both.Wait()
	<-stopped
	if n := worker.now.passes.state(); n.Drained[drainNoHeir] != 1 || n.Left > 0 || len(worker.estate.left) > 0 {
		t.Errorf("%+v, and %d were left; want one that was drained", n, len(worker.estate.left))
	}
}

// A proxy that takes longer to end than its heir holds what it leaves loses no
// connection: the other proxy waits for both.
func TestALongEndLosesNoConnection(t *testing.T) {
	_, server, client, process := replaceableHosts(t, compactOnly)
	server.estate.within, server.now.passes.endsWithin = time.Second, takenUpWithin
	rng := rand.New(rand.NewPCG(1, 2))
	streams := [2][]byte{messages(rng), messages(rng)}
	for i, way := range [][2]net.Conn{{client, process}, {process, client}} {
		go way[0].Write(streams[i])
		require.Value(io.ReadFull(way[1], make([]byte, len(streams[i]))))(t)
	}
	server.stop()
	time.Sleep(2 * server.estate.within) // it might have been busy with another connection
	server.begin()
	server.estate.give(server.now)
	last := appendPush(nil, rng, 100, 1<<10)
	go client.Write(last)
	got := make([]byte, len(last))
	process.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(process, got); err != nil || !bytes.Equal(got, last) {
		t.Errorf("after a long end: %v", err)
	}
}

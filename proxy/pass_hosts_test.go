package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// While a host is cut off, a proxy that is about to end goes on with the connections of
// all others, and hands them over when it is back.
func TestHostsAreAwaited(t *testing.T) {
	worker, server, client, process := replaceableHosts(t, compactOnly)
	rng := rand.New(rand.NewPCG(1, 2))
	say := func(from, to *net.TCPConn, message []byte, when string) {
		t.Helper()
		go from.Write(message)
		got := make([]byte, len(message))
		to.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("%s: %v", when, err)
		}
	}
	say(client, process, messages(rng), "at first")
	say(process, client, messages(rng), "at first")
	back, asked := make(chan struct{}), make(chan netip.Addr, 1)
	var looks atomic.Int32
	server.now.passes.answers = func(ctx context.Context, host netip.Addr) bool {
		if looks.Add(1) == 1 {
			asked <- host
		}
		return closed(back)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); server.stop() }()
	select {
	case host := <-asked:
		if !host.IsLoopback() {
			t.Errorf("it waits for %s", host)
		}
	case <-ended:
		t.Fatal("the proxy ended and did not look whether the worker's host answers")
	}
	say(client, process, appendPush(nil, rng, 100, 1<<10), "while a host does not answer")
	close(back)
	<-ended
	if n := len(server.estate.left); n != 1 {
		t.Fatalf("%d connections were left, want 1", n)
	}
	server.begin()
	server.estate.give(server.now)
	say(client, process, appendPush(nil, rng, 100, 1<<10), "through the next proxy")
	if n := worker.now.passes.state(); n.Lost > 0 || n.Taken != 1 {
		t.Errorf("%+v at the worker's proxy", n)
	}
}

// Where nobody holds connections they are ended, but not while a host is cut off: its
// process would hear of the end after the client has connected again.
func TestNoEndWhileAHostIsCutOff(t *testing.T) {
	_, server, client, process := replaceableHosts(t, compactOnly)
	rng := rand.New(rand.NewPCG(1, 2))
	say := func(message []byte, when string) {
		t.Helper()
		go client.Write(message)
		got := make([]byte, len(message))
		process.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(process, got); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("%s: %v", when, err)
		}
	}
	say(messages(rng), "at first")
	server.estate.ends = errors.New("the agent ends, too")
	back, asked := make(chan struct{}), make(chan struct{})
	var looks atomic.Int32
	server.now.passes.answers = func(context.Context, netip.Addr) bool {
		if looks.Add(1) == 1 {
			close(asked)
		}
		return closed(back)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); server.stop() }()
	select {
	case <-asked:
	case <-ended:
		t.Fatal("the proxy ended and did not look whether the worker's host answers")
	}
	say(appendPush(nil, rng, 100, 1<<10), "while a host does not answer")
	close(back)
	client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the client was told %v, want the end", err)
	}
	client.Close()
	if _, err := process.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the process was told %v, want the end", err)
	}
	process.Close()
	<-ended
}

// A host that does not come back keeps a proxy from its end for so long only.
func TestHostsAreAwaitedInVain(t *testing.T) {
	_, server, client, process := replaceableHosts(t, compactOnly)
	message := messages(rand.New(rand.NewPCG(1, 2)))
	go client.Write(message)
	require.Value(io.ReadFull(process, make([]byte, len(message))))(t)
	server.now.opts.Grace = time.Second
	server.now.passes.answers = func(context.Context, netip.Addr) bool { return false }
	if waited := server.now.passes.awaitHosts(); waited < 500*time.Millisecond {
		t.Errorf("it waited for %v", waited)
	}
	client.Close()
	process.Close()
}

// A host answers at whose mesh port nobody listens; one that says nothing does not.
func TestHostAnswers(t *testing.T) {
	_, server, _, _ := replaceableHosts(t, compactOnly)
	s := &server.now.passes
	host := netip.MustParseAddr(serverHost)
	if !s.hostAnswers(t.Context(), host) {
		t.Error("a host with a proxy does not answer")
	}
	if !s.hostAnswers(t.Context(), netip.MustParseAddr("127.9.9.9")) {
		t.Error("a host without a proxy does not answer")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s.hostAnswers(ended, host) {
		t.Error("a host answers that was not asked")
	}
}

// A connection that was handed over waits for longer than its time where the host of the
// proxy that is to dial again is cut off, until that is back; and no longer where it is
// not.
func TestAConnectionWaitsForAHostThatIsCutOff(t *testing.T) {
	for _, c := range []struct {
		name   string
		cutOff bool
	}{{"cut off", true}, {"without a proxy", false}} {
		t.Run(c.name, func(t *testing.T) {
			worker, server, client, process := replaceableHosts(t, compactOnly)
			worker.estate.within = 100 * time.Millisecond
			rng := rand.New(rand.NewPCG(1, 2))
			for _, way := range [][2]*net.TCPConn{{client, process}, {process, client}} {
				said := messages(rng)
				go way[0].Write(said)
				require.Value(io.ReadFull(way[1], make([]byte, len(said))))(t)
			}
			back, looked := make(chan struct{}), make(chan struct{}, 1)
			server.now.passes.answers = func(context.Context, netip.Addr) bool {
				select {
				case looked <- struct{}{}:
				default:
				}
				return !c.cutOff || closed(back)
			}
			worker.stop()
			<-looked // its time is over
			if !c.cutOff {
				require.Eventually(t, "it is given up", func() bool { return server.now.passes.state().Lost == 1 })
				return
			}
			<-looked
			close(back)
			worker.begin()
			worker.estate.give(worker.now)
			more := appendPush(nil, rng, 100, 1<<10)
			go client.Write(more)
			got := make([]byte, len(more))
			process.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.ReadFull(process, got); err != nil || !bytes.Equal(got, more) {
				t.Errorf("through the next proxy: %v; %+v", err, server.now.passes.state())
			}
			if n := server.now.passes.state(); n.Lost > 0 || n.Taken != 1 {
				t.Errorf("%+v at the server's proxy", n)
			}
		})
	}
}

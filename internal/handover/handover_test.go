package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two ends of a socket, the second as the kernel's bytes.
func pair(t testing.TB) (*Conn, *net.UnixConn) {
	t.Helper()
	fds := require.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		require.NoError(t, err)
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return NewConn(ends[0]), ends[1]
}

func openListener(t testing.TB) (*net.TCPListener, *os.File, netip.AddrPort) {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l := require.Value(lc.Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	f := require.Value(l.(*net.TCPListener).File())(t)
	t.Cleanup(func() { f.Close() })
	return l.(*net.TCPListener), f, l.Addr().(*net.TCPAddr).AddrPort()
}

func TestMessages(t *testing.T) {
	here, raw := pair(t)
	there := NewConn(raw)
	_, f, at := openListener(t)
	want := Message{Kind: Listening, ID: 7, Job: "198.18.0.1:9000", Cgroup: 1 << 40, Netns: 4026531840, Address: at}
	require.NoError(t, here.Send(want, f))
	got, file, err := there.Receive()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	l := require.Value(newListener(got, file))(t)
	require.NoError(t, errors.Join(file.Close(), l.Close()))
	require.NoError(t, here.Close())
	if _, _, err := there.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// TestBadMessages: what is wrong is named, and no descriptor stays open.
func TestBadMessages(t *testing.T) {
	_, f, at := openListener(t)
	file := int(f.Fd())
	for _, tc := range []struct {
		name, text string
		fds        []int
		want       string
	}{
		{"no JSON", "hello", nil, "decoding"},
		{"no descriptor", `{"kind":"listener"}`, nil, "0 descriptors, want 1"},
		{"two descriptors", `{"kind":"listener"}`, []int{file, file}, "2 descriptors, want 1"},
		{"a descriptor too many", `{"kind":"hello"}`, []int{file}, "1 descriptors, want 0"},
		{"too long", `{"kind":"hello","error":"` + strings.Repeat("x", maxMessage) + `"}`, nil, "more than"},
		{"too many descriptors", `{"kind":"listener"}`, []int{file, file, file, file, file, file, file, file, file, file}, "too many descriptors"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			here, raw := pair(t)
			before := openFiles(t)
			if _, _, err := raw.WriteMsgUnix([]byte(tc.text), unix.UnixRights(tc.fds...), nil); err != nil {
				t.Fatal(err)
			}
			if _, _, err := here.Receive(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
			if after := openFiles(t); after != before {
				t.Errorf("%d files open, %d before", after, before)
			}
		})
	}
	pipe, w, err := os.Pipe()
	require.NoError(t, err)
	defer pipe.Close()
	defer w.Close()
	if _, err := newListener(Message{Address: at}, pipe); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := newListener(Message{Address: netip.MustParseAddrPort("127.0.0.1:1")}, f); err == nil || !strings.Contains(err.Error(), "announced") {
		t.Errorf("another address: %v", err)
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries := require.Value(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"kind":"hello","version":1}`), false)
	f.Add([]byte(`{"kind":"listener","id":3,"job":"198.18.0.1:9000","cgroup":5,"netns":6,"address":"127.0.0.1:40000"}`), true)
	f.Add([]byte(`{"kind":"fail-closed","cgroup":18446744073709551615,"on":true,"sequence":1}`), false)
	f.Fuzz(func(t *testing.T, text []byte, withFile bool) {
		here, raw := pair(t)
		var rights []byte
		if withFile {
			rights = unix.UnixRights(0)
		}
		switch _, _, err := raw.WriteMsgUnix(text, rights, nil); {
		case errors.Is(err, unix.EMSGSIZE):
			return // nobody can send that
		case err != nil:
			t.Fatalf("sending %d bytes: %v", len(text), err)
		}
		m, file, err := here.Receive()
		if (err == nil && m.Kind == Listening) != (file != nil) {
			t.Errorf("%+v with file %v, %v", m, file, err)
		}
		if file != nil {
			file.Close()
		}
	})
}

// agentAt plays an agent at a socket: each session is one that the test talks
// in.
func agentAt(t *testing.T, socket string) (sessions chan *Conn, stop func()) {
	t.Helper()
	l := require.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"}))(t)
	sessions = make(chan *Conn)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			sessions <- NewConn(c)
		}
	}()
	return sessions, func() { l.Close(); <-done }
}

// TestClientServesListenersAsTheAgentSays: listeners are served, replaced and withdrawn as the agent says,
// and outlive it.
func TestClientServesListenersAsTheAgentSays(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	sessions, stop := agentAt(t, socket)
	events := make(chan string, 16)
	c := NewClient(socket, func(ctx context.Context, l *Listener) error {
		events <- fmt.Sprint("serving ", l.ID)
		<-ctx.Done()
		events <- fmt.Sprint("ended ", l.ID)
		return l.Close()
	})
	c.linger = 10 * time.Millisecond
	if err := c.SetFailClosed(t.Context(), 5, true); err == nil || !strings.Contains(err.Error(), "no agent") {
		t.Errorf("without an agent: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()

	expect := func(want string) {
		t.Helper()
		if got := <-events; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	meet := func() *Conn {
		t.Helper()
		agent := <-sessions
		if m, _, err := agent.Receive(); err != nil || m.Kind != Hello || m.Version != Version {
			t.Fatalf("%+v, %v", m, err)
		}
		say(t, agent, Message{Kind: Hello, Version: Version}, nil)
		return agent
	}
	agent := meet()
	_, f, at := openListener(t)
	offer := func(id, netns uint64) {
		t.Helper()
		say(t, agent, Message{Kind: Listening, ID: id, Cgroup: 5, Netns: netns, Address: at}, f)
	}
	offer(1, 100)
	expect("serving 1")
	offer(2, 200)
	expect("serving 2")
	offer(3, 100) // in the place of the first
	expect("serving 3")
	expect("ended 1")
	say(t, agent, Message{Kind: Withdrawn, ID: 3}, nil)
	expect("ended 3")

	answered := make(chan error)
	go func() { answered <- c.SetFailClosed(t.Context(), 5, true) }()
	m, _, err := agent.Receive()
	if err != nil || m.Kind != FailClosed || m.Cgroup != 5 || !m.On {
		t.Fatalf("%+v, %v", m, err)
	}
	say(t, agent, Message{Kind: Result, Sequence: m.Sequence, Error: "no such group"}, nil)
	if err := <-answered; err == nil || !strings.Contains(err.Error(), "no such group") {
		t.Errorf("the agent's error: %v", err)
	}
	go func() { answered <- c.SetFailClosed(t.Context(), 5, true) }()
	if _, _, err := agent.Receive(); err != nil {
		t.Fatal(err)
	}
	agent.Close() // with a question open
	if err := <-answered; err == nil || !strings.Contains(err.Error(), "has disconnected") {
		t.Errorf("the agent hung up: %v", err)
	}

	agent = meet() // a new agent, which knows of other listeners
	defer agent.Close()
	offer(10, 300)
	expect("serving 10")
	say(t, agent, Message{Kind: Complete}, nil)
	expect("ended 2")
	cancel()
	expect("ended 10")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stop()
}

func say(t *testing.T, agent *Conn, m Message, f *os.File) {
	t.Helper()
	require.NoError(t, agent.Send(m, f))
}

// TestClientIsRefused: an agent of another version ends the client, with the
// reason.
func TestClientIsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	sessions, stop := agentAt(t, socket)
	defer stop()
	ended := make(chan error)
	go func() {
		ended <- NewClient(socket, func(context.Context, *Listener) error { return nil }).Run(t.Context())
	}()
	agent := <-sessions
	defer agent.Close()
	say(t, agent, Message{Kind: Refused, Error: "this is version 2"}, nil)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "this is version 2") {
		t.Errorf("%v", err)
	}
}

// TestLocalClient: agent and proxy in one process talk over a pair as they do
// over a socket.
func TestLocalClient(t *testing.T) {
	served := make(chan string, 1)
	agent := make(chan *Conn, 1)
	c := NewLocalClient(func(context.Context) (*net.UnixConn, error) {
		a, b, err := Pair()
		if err == nil {
			agent <- NewConn(a)
		}
		return b, err
	}, func(ctx context.Context, l *Listener) error {
		served <- l.Addr().String()
		<-ctx.Done()
		return l.Close()
	})
	c.Carried(func() (job, far uint64) { return 1 << 60, 7 })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	a := <-agent
	defer a.Close()
	if m, _, err := a.Receive(); err != nil || m.Kind != Hello {
		t.Fatalf("%+v, %v", m, err)
	}
	l := require.Value(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	file := require.Value(l.(*net.TCPListener).File())(t)
	defer file.Close()
	hello := a.Send(Message{Kind: Hello, Version: Version}, nil)
	address := l.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, errors.Join(hello, a.Send(Message{Kind: Listening, ID: 1, Address: address}, file)))
	if got := <-served; got != address.String() {
		t.Errorf("the proxy serves %s, want %s", got, address)
	}
	say(t, a, Message{Kind: Ping}, nil)
	if m, _, err := a.Receive(); err != nil || m.Kind != Pong || m.Carried == nil || *m.Carried != (Carried{Job: 1 << 60, Far: 7}) {
		t.Errorf("a ping is answered with %+v, %v", m, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

package handover

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// A proxy that is about to end takes no listener any more, and its agent hears from it
// what it leaves, until it has said all.
func TestLeavesAreToldToTheAgent(t *testing.T) {
	type packet struct {
		m     Message
		files int
	}
	said, sent := make(chan packet, 10), make(chan *Conn, 1)
	dial := func(context.Context) (*net.UnixConn, error) {
		agent, proxy, err := Pair()
		if err != nil {
			return nil, err
		}
		go func() {
			c := NewConn(agent)
			defer c.Close()
			defer close(said)
			c.Receive()
			c.Send(Message{Kind: Hello, Version: Version, Keeps: 1, Holds: 1500}, nil)
			sent <- c
			for {
				m, files, err := c.ReceiveAll()
				if err != nil {
					return
				}
				said <- packet{m, len(files)}
				for _, f := range files {
					f.Close()
				}
			}
		}()
		return proxy, nil
	}
	served := make(chan *Listener, 1)
	client := NewLocalClient(dial, func(_ context.Context, l *Listener) error { served <- l; return nil })
	client.Keeps(func(uint64, *os.File, *os.File) {}, func() {})
	over := make(chan struct{})
	client.StayUntil(over)
	if most, within := client.Holds(); most != 0 || within != 0 {
		t.Errorf("without an agent %d connections are held for %v", most, within)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	agent := <-sent
	require.Eventually(t, "the client knows what the agent holds", func() bool {
		most, within := client.Holds()
		return most == 1 && within == 1500*time.Millisecond
	})
	stop()
	_, file, at := openListener(t)
	require.NoError(t, agent.Send(Message{Kind: Listening, ID: 3, Address: at}, file))
	socket, _ := connected(t)
	require.NoError(t, client.Leave(7, socket, file))
	if p := <-said; p.m.Kind != Keep || p.m.ID != 7 || p.files != 2 {
		t.Errorf("the agent heard %+v", p)
	}
	if err := client.Leave(8, socket, file); err == nil {
		t.Error("it held more than it can")
	}
	close(over)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, more := <-said; more {
		t.Error("the agent heard more")
	}
	select {
	case l := <-served:
		t.Errorf("a listener was served: %v", l.Addr())
	default:
	}
}

func connected(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, _, at := openListener(t)
	dialed := require.Value(net.Dial("tcp", at.String()))(t)
	accepted := require.Value(l.AcceptTCP())(t)
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return dialed.(*net.TCPConn), accepted
}

// An agent that ends, and has not read all that it was told, has given away what it
// held: all of that is taken before the proxy looks for another agent.
func TestWhatAnAgentGaveBeforeItsEndIsTaken(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	sessions, stop := agentAt(t, socket)
	defer stop()
	c := NewClient(socket, func(context.Context, *Listener) error { return nil })
	taken, gone := make(chan uint64, 16), make(chan struct{})
	c.Keeps(func(id uint64, socket, page *os.File) {
		socket.Close()
		page.Close()
		taken <- id
	}, func() { close(taken) })
	c.Alive(func() error { <-gone; return nil }) // so that it answers, and then reads on, an agent that has gone
	own, _ := connected(t)
	_, file, _ := openListener(t)
	c.Keep(99, own, file) // the agent does not read that
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	agent := <-sessions
	if m, _, err := agent.Receive(); err != nil || m.Kind != Hello {
		t.Fatalf("%+v, %v", m, err)
	}
	left, _ := connected(t)
	say := func(m Message, files ...syscall.Conn) {
		t.Helper()
		require.NoError(t, agent.send(m, files...))
	}
	say(Message{Kind: Hello, Version: Version, Keeps: 8, Holds: 1000})
	say(Message{Kind: Ping})
	for id := range uint64(5) {
		say(Message{Kind: Kept, ID: id}, left, file)
	}
	say(Message{Kind: AllKept})
	agent.Close()
	close(gone)
	for want := uint64(0); ; want++ {
		select {
		case id, more := <-taken:
			if !more && want < 5 || more && id != want {
				t.Fatalf("it took %d, more %v, want %d", id, more, want)
			}
			if more {
				continue
			}
		case again := <-sessions:
			again.Close()
			t.Fatalf("it looks for another agent, and has taken %d connections of 5", want)
		}
		break
	}
	end()
	for {
		select {
		case s := <-sessions:
			s.Close()
			continue
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		}
		return
	}
}

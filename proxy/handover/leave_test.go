package handover

import (
	"context"
	"net"
	"os"
	"testing"
	"time"
)

// A proxy that is about to end takes no listener any more, and its agent hears from it
// what it leaves, until it has said all.
func TestLeaves(t *testing.T) {
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
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if most, within := client.Holds(); most == 1 && within == 1500*time.Millisecond {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the client does not know what the agent holds")
		}
	}
	stop()
	_, file, at := openListener(t)
	if err := agent.Send(Message{Kind: Listening, ID: 3, Address: at}, file); err != nil {
		t.Fatal(err)
	}
	socket, _ := connected(t)
	if err := client.Leave(7, socket, file); err != nil {
		t.Fatal(err)
	}
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
	dialed, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return dialed.(*net.TCPConn), accepted
}

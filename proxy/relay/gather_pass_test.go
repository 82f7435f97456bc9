package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

// stuck takes the first message and never lets it go, so that all others wait behind it.
type stuck struct {
	taken  bool
	waits  chan struct{} // signalled when Due is called in vain
	behind chan struct{} // signalled when a message waits
}

func newStuck() *stuck { return &stuck{waits: make(chan struct{}, 1), behind: make(chan struct{}, 1)} }

func (s *stuck) Wants(*Message) bool { return false }

func (s *stuck) Take(*Message) Taken {
	if s.taken {
		signal(s.behind)
		return Waits
	}
	s.taken = true
	return Took
}

func (s *stuck) Due() ([][]byte, error) {
	if s.taken {
		signal(s.waits)
	}
	return nil, nil
}

func (s *stuck) Written()      {}
func (s *stuck) Waiting() bool { return s.taken }
func (s *stuck) Rests() bool   { return true }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// passBoth runs both ends of a link and waits until both have ended for another link.
func passBoth(t *testing.T, near, far *Conn, before func()) {
	t.Helper()
	ended := make(chan error, 2)
	for _, c := range []*Conn{near, far} {
		go func() { ended <- c.Run(context.Background(), NewMemory(64<<20)) }()
	}
	before()
	for range 2 {
		select {
		case err := <-ended:
			if !errors.Is(err, ErrPassed) {
				t.Errorf("an end of the link: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("an end of the link does not stand")
		}
	}
}

// A connection of which messages wait goes on over another link when the other end wants
// it to: what they wait for may come over a connection that stands already. A message that
// waits behind them goes on with them, and a stream that has ended ends again.
func TestAConnectionChangesLinksWhileMessagesWait(t *testing.T) {
	for name, ends := range map[string]bool{"behind a message": false, "at the end of the stream": true} {
		t.Run(name, func(t *testing.T) {
			client, job := tcpPair(t)
			linkA, linkB := tcpPair(t)
			farJob, _ := tcpPair(t)
			s := newStuck()
			near := &Conn{Job: job, Far: linkA, Sender: &plainCodec{never: true}, Receiver: &plainCodec{}, Gatherer: s, Passing: &Passing{Begun: true}}
			far := &Conn{Job: farJob, Far: linkB, Sender: &plainCodec{never: true}, Receiver: &plainCodec{}, Passing: &Passing{Begun: true}}
			rng := rand.New(rand.NewPCG(1, 1))
			var second []byte
			passBoth(t, near, far, func() {
				client.Write(push(nil, rng, 3, 40, false))
				if ends {
					client.CloseWrite()
					<-s.waits
				} else {
					second = push(nil, rng, 3, 40, true)
					client.Write(second)
					<-s.behind
				}
				far.Pass(time.Second)
			})
			if !bytes.Equal(near.Passing.Left, second) {
				t.Errorf("%d bytes are left for the next link, want the %d of the second message", len(near.Passing.Left), len(second))
			}
		})
	}
}

// What a sender has of its own goes before a link ends in order: the next link has another
// sender.
func TestOwnMessagesGoBeforeTheLinkEnds(t *testing.T) {
	_, job := tcpPair(t)
	linkA, linkB := tcpPair(t)
	farJob, server := tcpPair(t)
	s := &speaker{plainCodec: plainCodec{never: true}}
	near := &Conn{Job: job, Far: linkA, Sender: s, Receiver: &plainCodec{}, Passing: &Passing{Begun: true}}
	far := &Conn{Job: farJob, Far: linkB, Sender: &plainCodec{never: true}, Receiver: &listener{}, Passing: &Passing{Begun: true}}
	s.say(7)
	near.Pass(time.Second) // it stands as soon as it runs
	passBoth(t, near, far, func() {})
	server.SetReadDeadline(time.Now().Add(time.Minute))
	if frame, err := readFrame(server); err != nil || !bytes.Equal(frame, []byte{7}) {
		t.Errorf("the server gets %v, %v; want the sender's own message", frame, err)
	}
}

// passer passes all messages, and signals when what it was shown of one has been written.
type passer struct {
	stuck
	written chan struct{}
}

func (p *passer) Take(*Message) Taken {
	p.taken = true
	return Passes
}

func (p *passer) Waiting() bool { return false }

func (p *passer) Written() {
	if p.taken {
		signal(p.written)
	}
}

// A gatherer learns that its messages were written while a large one is still coming from
// a process that has stopped in the middle of it: other processes must not wait for that.
func TestAnUnfinishedMessageDoesNotCountAsBeingWritten(t *testing.T) {
	client, job := tcpPair(t)
	far, server := tcpPair(t)
	p := &passer{written: make(chan struct{}, 1)}
	conn := &Conn{Job: job, Far: far, Sender: &plainCodec{never: true}, Receiver: &plainCodec{}, Gatherer: p}
	ended := make(chan error, 1)
	go func() { ended <- conn.Run(context.Background(), NewMemory(64<<20)) }()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		io.Copy(io.Discard, server)
		server.Close()
	}()
	b := push(greetingAndReady("DEALER"), rand.New(rand.NewPCG(1, 1)), 3, 1<<20, false)
	if _, err := client.Write(b[:200<<10]); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.written:
	case <-time.After(time.Minute):
		t.Error("the gatherer does not hear that what it passed was written")
	}
	client.Close()
	<-drained
	<-ended
}

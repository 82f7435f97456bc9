package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// mover is a delayer that has its connection change links again and again.
type mover struct {
	delayer
	left   int // changes of links that are still to come
	shown  int
	change func()
}

func (m *mover) Take(shown *Message) Taken {
	if m.shown++; m.left > 0 && m.shown%5 == 0 {
		m.left--
		m.change()
	}
	return m.delayer.Take(shown)
}

// Rests is true as long as the same mover goes on.
func (m *mover) Rests() bool { return true }

// journey is a connection that goes on over another link each time that a mover wants it to.
type journey struct {
	outbound, inbound *sieve
	gatherer          *mover
	rng               *rand.Rand
	memory            *Memory
	link              func() (a, b *net.TCPConn)
	judged, hops      int
}

func (j *journey) codec() *plainCodec {
	return &plainCodec{rng: rand.New(rand.NewPCG(j.rng.Uint64(), 1))}
}

// run carries both ends to their end, from the client's process to the server's.
func (j *journey) run(clientJob, serverJob *Conn) error {
	near, far := clientJob, serverJob
	near.Passing, far.Passing = &Passing{}, &Passing{}
	for {
		near.Far, far.Far = j.link()
		near.Sender, near.Receiver, far.Sender, far.Receiver = j.codec(), j.codec(), j.codec(), j.codec()
		near.Outbound, near.Gatherer, far.Inbound = j.outbound, j.gatherer, j.inbound
		asks := []*Conn{near, far}[j.rng.IntN(2)]
		j.gatherer.mu.Lock()
		j.gatherer.wake = near.Wake
		j.gatherer.mu.Unlock()
		j.gatherer.change = func() { asks.Pass(time.Second) }
		errs := make(chan error, 2)
		for _, c := range []*Conn{near, far} {
			go func() { errs <- c.Run(context.Background(), j.memory) }()
		}
		err := errors.Join(<-errs, <-errs)
		if !errors.Is(err, ErrPassed) {
			return err
		}
		j.hops++
		if near.Passing.Judged {
			j.judged++
		}
		next := func(c *Conn) *Conn {
			return &Conn{Job: c.Job, Passing: &Passing{Begun: true, Left: c.Passing.Left, Ready: c.Passing.Ready, Judged: c.Passing.Judged}}
		}
		near, far = next(near), next(far)
	}
}

// A stage's messages and the job's wait behind those that a gatherer has taken, also where the
// connection goes on over other links meanwhile: none is lost, none comes twice, and the stage
// decides about each once.
func TestStageBeforeAGatherer(t *testing.T) {
	judged, returned, hops := 0, 0, 0
	for seed := range uint64(12) {
		outbound, inbound := newSieve(2), newSieve(4)
		outbound.waits = seed%4 > 1
		j := &journey{outbound: outbound, inbound: inbound, rng: rand.New(rand.NewPCG(seed, 8)), memory: NewMemory(64 << 20)}
		j.gatherer = &mover{delayer: delayer{rng: rand.New(rand.NewPCG(seed, 9))}, left: int(seed) * 3}
		j.link = func() (a, b *net.TCPConn) { return tcpPair(t) }
		client, nearJob := tcpPair(t)
		farJob, server := tcpPair(t)
		messages := numbered(seed, 120)
		sent := zmtp.AppendCommand(greetingAndReady("DEALER"), "SECRET", []byte("for a stage"))
		want := greetingAndReady("DEALER")
		for i, m := range messages {
			if sent = append(sent, m...); !outbound.takes(int32(i)) && !inbound.takes(int32(i)) {
				want = append(want, m...)
			}
		}
		var speaking sync.WaitGroup
		said := int32(0)
		speaking.Go(func() {
			for said < 200 && outbound.say(own(100000+said)) {
				said++
			}
		})
		speaking.Go(func() {
			if err := writeCut(client, sent, rand.New(rand.NewPCG(seed, 6))); err != nil {
				t.Error(err)
			}
			speaking.Go(func() { io.Copy(io.Discard, client) })
			client.CloseWrite()
		})
		speaking.Go(func() {
			if err := writeCut(server, greetingAndReady("ROUTER"), rand.New(rand.NewPCG(seed, 7))); err != nil {
				t.Error(err)
			}
		})
		ended := make(chan error, 1)
		go func() { ended <- j.run(&Conn{Job: nearJob}, &Conn{Job: farJob}) }()
		got, err := io.ReadAll(server)
		server.CloseWrite()
		speaking.Wait()
		if carried := <-ended; carried != nil || err != nil {
			t.Fatalf("seed %d: %v, %v", seed, carried, err)
		}
		rest, owns := apart(t, got)
		if !bytes.Equal(rest, want) {
			t.Errorf("seed %d: %d bytes came to the server, otherwise than %d", seed, len(rest), len(want))
		}
		if n := int32(len(owns[0])); n != said || !slices.IsSorted(owns[0]) {
			t.Errorf("seed %d: the stage said %d messages, %d came", seed, said, n)
		}
		for at, n := range outbound.inspected {
			if n != 1 {
				t.Errorf("seed %d: the stage decided %d times about message %d", seed, n, at)
			}
		}
		judged, returned, hops = judged+j.judged, returned+outbound.returned, hops+j.hops
	}
	if judged == 0 || returned == 0 || hops < 20 {
		t.Errorf("%d changes of links, %d with a message that had been let pass, %d messages went back to their stage: want some of each", hops, judged, returned)
	}
}

package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
)

// passing is a job's connection whose two relays are replaced again and again.
type passing struct {
	t      *testing.T
	rng    *rand.Rand
	memory *Memory
	jobs   [2]*net.TCPConn
	was    [2]*Passing
}

// run carries the connection over one more link, until either end has it pass, and
// reports whether it is over.
func (p *passing) run() (over bool) {
	p.t.Helper()
	var conns [2]*Conn
	a, b := tcpPair(p.t)
	for i, far := range []*net.TCPConn{a, b} {
		codec := func() *plainCodec {
			return &plainCodec{rng: rand.New(rand.NewPCG(p.rng.Uint64(), 0)), holds: i == 0}
		}
		next := &Passing{}
		if was := p.was[i]; was != nil {
			next = &Passing{Begun: true, Left: was.Left, Ready: was.Ready}
		}
		p.was[i] = next
		conns[i] = &Conn{Job: p.jobs[i], Far: far, Sender: codec(), Receiver: &plainCodec{}, Passing: next}
	}
	ended := make(chan error, 2)
	for _, c := range conns {
		go func() { ended <- c.Run(context.Background(), p.memory) }()
	}
	time.Sleep(time.Duration(p.rng.IntN(20)) * time.Millisecond)
	for i, c := range conns {
		if p.rng.IntN(2) == i || p.rng.IntN(4) == 0 {
			c.Pass(time.Second)
		}
	}
	for range conns {
		err := <-ended
		if over = over || err == nil; err != nil && !errors.Is(err, ErrPassed) {
			p.t.Error(err)
			return true
		}
	}
	return over
}

// A connection goes on over one link after the other, wherever the streams stand when
// an end or both want it to: they come out byte for byte as they went in.
func TestStreamsGoOnOverOtherLinks(t *testing.T) {
	for seed := range uint64(4) {
		p := &passing{t: t, rng: rand.New(rand.NewPCG(seed, 1)), memory: NewMemory(64 << 20)}
		var client, server *net.TCPConn
		client, p.jobs[0] = tcpPair(t)
		p.jobs[1], server = tcpPair(t)
		done := make(chan error, 2)
		for i, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			go func() {
				done <- transfer(way[0], way[1], stream(seed+uint64(1000*i), 200), rand.New(rand.NewPCG(seed, uint64(i))))
			}()
		}
		links := 1
		for ; !p.run(); links++ {
			for i, was := range p.was {
				if string(was.Ready) == "" && links > 5 {
					t.Errorf("seed %d: the READY command of end %d is not known", seed, i)
				}
			}
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
		if t.Logf("seed %d: %d links", seed, links); links < 3 {
			t.Errorf("seed %d: only %d links", seed, links)
		}
	}
}

// The command that a stream goes on elsewhere is an error where it was not agreed on,
// and so is what follows it.
func TestPassUnasked(t *testing.T) {
	b := appendCommand(greetingAndReady("DEALER"), flagPass, make([]byte, 4))
	for name, c := range map[string]struct {
		b       []byte
		passing *Passing
		want    reason.Reason
	}{
		"not agreed on": {b, nil, reason.MalformedLink},
		"not the last":  {append(b[:len(b):len(b)], 0), &Passing{}, reason.MalformedLink},
		"no time":       {appendCommand(greetingAndReady("DEALER"), flagPass, make([]byte, 3)), &Passing{}, reason.MalformedLink},
	} {
		_, down := newSides(0)
		down.(*decoder).passing = c.passing
		if _, errs := pump(c.b, down); reason.Of(errs[0]) != c.want {
			t.Errorf("%s: %v", name, errs[0])
		}
	}
}

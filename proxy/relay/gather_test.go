package relay

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/require"
)

// delayer takes messages at a whim, and lets them go when it is asked often enough.
type delayer struct {
	mu      sync.Mutex
	rng     *rand.Rand
	taken   [][][]byte
	later   int // calls of Due until the first of taken goes
	writing int // calls of Written that lack
	whole   int // large messages that were taken
	wake    func()
}

func (d *delayer) Wants(*Message) bool { return d.rng.IntN(2) == 0 }

func (d *delayer) Take(m *Message) Taken {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.Rest || d.rng.IntN(3) == 0 {
		if len(d.taken) > 0 {
			return Waits
		}
		d.writing = 1
		return Passes
	}
	var frames [][]byte
	for _, f := range m.Frames {
		frames = append(frames, bytes.Clone(f))
		if len(f) > maxFrame {
			d.whole++
		}
	}
	d.taken = append(d.taken, frames)
	return Took
}

func (d *delayer) Due() ([][]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.taken) == 0 {
		return nil, nil
	}
	if d.later--; d.later > 0 {
		go d.wake()
		return nil, nil
	}
	d.later = d.rng.IntN(4)
	frames := d.taken[0]
	d.taken = d.taken[1:]
	d.writing = 1
	return frames, nil
}

func (d *delayer) Written() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writing = 0
}

func (d *delayer) Waiting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.taken) > 0
}

func (d *delayer) Rests() bool { return !d.Waiting() }

// ears count the metas that they hear.
type ears struct {
	metas int
	ready string
}

func (e *ears) Ready(r zmtp.Ready) { e.ready = string(r.Identity) }

func (e *ears) Hear(meta []byte) {
	var m pslite.Meta
	if _, err := new(pslite.Detector).Decode(meta, &m); err == nil && m.Push {
		e.metas++
	}
}

// What a gatherer takes goes in order with what passes, complete, also at the stream's
// end; it hears when all of it has been written, and the other end's hearer of each
// message.
func TestGatheredMessagesGoInOrder(t *testing.T) {
	const messages = 400
	client, job := tcpPair(t)
	linkA, linkB := tcpPair(t)
	farJob, server := tcpPair(t)
	rng := rand.New(rand.NewPCG(3, 3))
	memory := NewMemory(64 << 20)
	near := &Conn{Job: job, Far: linkA, Sender: &plainCodec{rng: rng}, Receiver: &plainCodec{}}
	d := &delayer{rng: rand.New(rand.NewPCG(4, 4)), wake: near.Wake}
	near.Gatherer = d
	e := &ears{}
	far := &Conn{Job: farJob, Far: linkB, Sender: &plainCodec{never: true}, Receiver: &plainCodec{}, Hearer: e}
	ended := make(chan error, 2)
	for _, c := range []*Conn{near, far} {
		go func() { ended <- c.Run(context.Background(), memory) }()
	}
	sent := greetingAndReady("DEALER")
	sizes := rand.New(rand.NewPCG(5, 5))
	for i := range messages {
		size := 1 + sizes.IntN(2000)
		if i%20 == 0 {
			size = 1 + sizes.IntN(2<<20)
		}
		sent = push(sent, sizes, 3, size, i%3 == 0)
	}
	go func() {
		for left := sent; len(left) > 0; {
			n := min(len(left), 1+sizes.IntN(100_000))
			client.Write(left[:n])
			left = left[n:]
		}
		client.CloseWrite()
	}()
	got := require.Value(io.ReadAll(server))(t)
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came of %d, or others", len(got), len(sent))
	}
	server.Close()
	for range 2 {
		<-ended
	}
	switch {
	case e.metas != messages || e.ready != "ps9":
		t.Errorf("%d messages were heard of %d, from %q", e.metas, messages, e.ready)
	case d.writing != 0:
		t.Error("the gatherer has not heard that all was written")
	case d.whole == 0:
		t.Error("no large message was taken")
	}
}

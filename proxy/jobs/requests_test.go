package jobs

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/relay"
)

var serverAt = netip.MustParseAddrPort("10.0.0.2:9001")

// A connection on which a process is silent is woken for the router's messages, and what the process
// sends later is read.
func TestSilentProcessIsNotWaitedFor(t *testing.T) {
	line := jobsIn(t, t.TempDir()).outbound(serverAt, Scope{}, "here")
	c := carry(t, line, false)
	line.Receptive()
	greeting := greetingOf("DEALER", "ps9")
	sayTo(t, c.process, greeting)
	expect(t, c.far, "the greeting and who it is", greeting)
	var barrier pslite.Meta
	barrier.Reset()
	barrier.Control.Cmd = pslite.Barrier
	message := appendMessage(nil, [][]byte{barrier.Append(nil, pslite.DMLC)})
	for range 50 {
		line.enqueue(message)
		expect(t, c.far, "the router's message", message)
		line.enqueue(message)
		line.enqueue(message)
		c.conn.Wake() // both at once
		expect(t, c.far, "the router's messages", slices.Concat(message, message))
		sayTo(t, c.process, message)
		expect(t, c.far, "the job's message", message)
	}
}

// sieve takes the messages of one timestamp, and queues others before it decides about some.
type sieve struct {
	*requests
	takes  int32            // timestamp
	queues map[int32][]byte // by the timestamp of the message
	mu     sync.Mutex       // guards taken
	taken  []int32
}

func (w *sieve) WantsKeys(*pslite.Meta) bool { return true }
func (w *sieve) Inspect(m *pslite.Message, _ pslite.Dialect) (relay.Taken, error) {
	if b := w.queues[m.Meta.Timestamp]; b != nil {
		w.enqueue(b)
		w.enqueue(b)
	}
	if m.Meta.Timestamp == w.takes {
		return relay.Took, nil
	}
	return relay.Passes, nil
}

func (w *sieve) Take(m *pslite.Message, _ pslite.Dialect) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken = append(w.taken, m.Meta.Timestamp)
	return nil
}

// Requests that wait are sent when the process's next one is being looked at, which then passes:
// it does not overtake them.
func TestWaitingRequestsAreNotOvertaken(t *testing.T) {
	line := jobsIn(t, t.TempDir()).outbound(serverAt, Scope{}, "")
	line.receptive = true
	push := func(timestamp int32) []byte { return pushOf(timestamp, 7, 1000) }
	// Before the first message of a read, and between two of one.
	w := &sieve{requests: line, takes: -1, queues: map[int32][]byte{1: push(101), 3: push(103)}}
	c := carry(t, w, false)
	sent := greetingOf("DEALER", "ps9")
	want := slices.Clone(sent)
	for i := range int32(5) {
		sent = append(sent, push(i)...)
		if b := w.queues[i]; b != nil {
			want = slices.Concat(want, b, b)
		}
		want = append(want, push(i)...)
	}
	sayTo(t, c.process, sent)
	expect(t, c.far, "the messages in order", want)
}

// Whatever pieces a process's messages come in, what the router does not take comes in order and
// whole, and what it puts in stands between two messages.
func TestRequestsInAnyPieces(t *testing.T) {
	for seed := range uint64(8) {
		line := jobsIn(t, t.TempDir()).outbound(serverAt, Scope{}, "")
		line.receptive = true
		w := &sieve{requests: line, takes: 5}
		c := carry(t, w, false)
		random := rand.New(rand.NewPCG(seed, 1))
		greeting := greetingOf("DEALER", "ps9")
		const most, own = 200, 1 << 20 // messages; timestamps of those put in
		sent, want := slices.Clone(greeting), slices.Clone(greeting[64:])
		for i := range most {
			meta := pslite.Meta{Request: true, Push: true, Timestamp: int32(i % 10), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
			m := appendMessage(nil, [][]byte{meta.Append(nil, pslite.DMLC), make([]byte, 8*random.IntN(100)), make([]byte, random.IntN(1<<random.IntN(19)))})
			sent = append(sent, m...)
			if i%10 != int(w.takes) {
				want = append(want, m...)
			}
		}
		var writing sync.WaitGroup
		writing.Go(func() {
			random := rand.New(rand.NewPCG(seed, 2))
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 1+random.IntN(1<<random.IntN(18)))
				if _, err := c.process.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			c.process.CloseWrite()
		})
		puts := 0
		writing.Go(func() {
			for puts < 50 {
				meta := pslite.Meta{Timestamp: int32(own + puts)}
				if !line.enqueue(appendMessage(nil, [][]byte{meta.Append(nil, pslite.DMLC)})) {
					return // the process has ended
				}
				puts++
			}
		})
		got, err := io.ReadAll(c.far)
		writing.Wait()
		if err != nil || !bytes.HasPrefix(got, greeting[:64]) {
			t.Fatalf("seed %d: %d bytes came, %v", seed, len(got), err)
		}
		rest, between := withoutOwn(t, got[64:], own)
		if !bytes.Equal(rest, want) {
			t.Errorf("seed %d: %d bytes of the process's came, otherwise than %d that it sent", seed, len(rest), len(want))
		}
		w.mu.Lock() // as the race detector knows nothing of the sockets
		defer w.mu.Unlock()
		if between != puts || len(w.taken) != most/10 {
			t.Errorf("seed %d: %d messages came of %d put in, and %d of %d were taken", seed, between, puts, len(w.taken), most/10)
		}
	}
}

// withoutOwn returns b, frames, without the messages of one frame whose timestamps
// count up from own, and how many those are.
func withoutOwn(t *testing.T, b []byte, own int32) (rest []byte, n int) {
	t.Helper()
	inside := false
	for len(b) > 0 {
		h, head, err := zmtp.CutHeader(b)
		if err != nil || head == 0 || len(b) < head+int(h.Size) {
			t.Fatalf("%d bytes of no whole frame: %v", len(b), err)
		}
		frame := b[:head+int(h.Size)]
		b = b[len(frame):]
		var meta pslite.Meta
		if !inside && !h.More() && !h.Command() && meta.Decode(frame[head:], pslite.DMLC) == nil && meta.Timestamp == own+int32(n) {
			n++
			continue
		}
		inside = h.More()
		rest = append(rest, frame...)
	}
	return rest, n
}

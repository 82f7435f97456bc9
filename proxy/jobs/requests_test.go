package jobs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// A connection on which a process is silent is woken for the router, which puts
// a message in, and for the relay, whose Read ends; neither costs the other
// its turn, and what comes later is read.
func TestWakeForRouterAndRelay(t *testing.T) {
	client, accepted := connected(t)
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	c := j.Outbound(accepted, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, "here").(*requests)
	c.far.done.Store(true)
	defer c.Close()
	type result struct {
		n   int
		err error
	}
	reads := make(chan result)
	read := func() {
		n, err := c.Read(make([]byte, 1<<16))
		reads <- result{n, err}
	}
	expect := func(what string, n int, want error) {
		t.Helper()
		select {
		case r := <-reads:
			if r.n != n || !errors.Is(r.err, want) {
				t.Fatalf("%s: %d bytes, %v; want %d, %v", what, r.n, r.err, n, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: not woken", what)
		}
	}
	g := zmtp.NewGreeting(0, 0)
	greeting := zmtp.AppendReady(g[:], "DEALER", []byte("ps9"))
	if _, err := client.Write(greeting); err != nil {
		t.Fatal(err)
	}
	go read()
	expect("the greeting and who it is", len(greeting), nil)
	var barrier pslite.Meta
	barrier.Reset()
	barrier.Control.Cmd = pslite.Barrier
	message := appendMessage(nil, [][]byte{barrier.Append(nil, pslite.DMLC)})
	for range 50 {
		go read()
		c.enqueue(message)
		expect("the router's message", len(message), nil)
		go read()
		c.SetReadDeadline(time.Now())
		expect("the relay's turn", 0, os.ErrDeadlineExceeded)
		c.SetReadDeadline(time.Time{})
		c.enqueue(message)
		c.SetReadDeadline(time.Now()) // both at once
		go read()
		expect("the router's message before the relay's turn", len(message), nil)
		c.SetReadDeadline(time.Time{})
		go read()
		if _, err := client.Write(message); err != nil {
			t.Fatal(err)
		}
		expect("the job's message", len(message), nil)
	}
}

// sieve is a watcher that takes the messages of one timestamp, and ends
// the connection at another.
type sieve struct {
	takes, ends int32 // timestamps
	taken       []int32
}

var errEnds = errors.New("it ends here")

func (*sieve) ready(int32) error           { return nil }
func (*sieve) named(plan.Run)              {}
func (*sieve) wantsKeys(*pslite.Meta) bool { return true }
func (w *sieve) inspect(m *pslite.Message, _ pslite.Dialect) (bool, error) {
	if m.Meta.Timestamp == w.ends {
		return false, errEnds
	}
	return m.Meta.Timestamp != w.takes, nil
}

func (w *sieve) takeMessage(m *pslite.Message, _ pslite.Dialect) error {
	w.taken = append(w.taken, m.Meta.Timestamp)
	return nil
}

// Buffered messages of a process are read at once, without those that the router
// took, and with those that it inserts between two messages.
func TestReadAtOnce(t *testing.T) {
	client, accepted := connected(t)
	j, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	c := j.Outbound(accepted, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, "").(*requests)
	c.far.done.Store(true)
	defer c.Close()
	w := &sieve{takes: 3, ends: 7}
	c.stream.watcher = w
	g := zmtp.NewGreeting(0, 0)
	greeting := zmtp.AppendReady(g[:], "DEALER", []byte("ps9"))
	push := func(timestamp int32) []byte {
		meta := pslite.Meta{Request: true, Push: true, Timestamp: timestamp, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
		return appendMessage(nil, [][]byte{meta.Append(nil, pslite.DMLC), make([]byte, 80), make([]byte, 4000)})
	}
	all := [][]byte{greeting}
	for i := range int32(8) {
		all = append(all, push(i))
	}
	sent := slices.Concat(all...)
	own := push(100)
	c.enqueue(own) // wakes the first Read, which has nothing to put it between yet
	if _, err := client.Write(sent); err != nil {
		t.Fatal(err)
	}
	awaitIncoming(t, accepted, len(sent))
	for _, want := range [][]byte{g[:], own, slices.Concat(greeting[len(g):], push(0), push(1), push(2)), slices.Concat(push(4), push(5), push(6))} {
		got := make([]byte, 1<<16)
		n, err := c.Read(got)
		if err != nil || !bytes.Equal(got[:n], want) {
			t.Fatalf("a read of %d bytes, %v; want %d", n, err, len(want))
		}
	}
	if n, err := c.Read(make([]byte, 1<<16)); n != 0 || !errors.Is(err, errEnds) {
		t.Errorf("%d bytes and %v at last, want none and %v", n, err, errEnds)
	}
	if !slices.Equal(w.taken, []int32{3}) {
		t.Errorf("messages %v were taken, want 3", w.taken)
	}
}

// late is a sieve before whose decision on a message the router queues others.
type late struct {
	sieve
	c      *requests
	queues map[int32][]byte // by the timestamp of the message
}

func (w *late) inspect(m *pslite.Message, d pslite.Dialect) (bool, error) {
	if b := w.queues[m.Meta.Timestamp]; b != nil {
		w.c.enqueue(b)
		w.c.enqueue(b)
	}
	return w.sieve.inspect(m, d)
}

// Requests that wait are sent when the process's next one is being looked at, which then passes:
// it does not overtake them.
func TestWaitingRequestsAreNotOvertaken(t *testing.T) {
	client, accepted := connected(t)
	c := jobsIn(t, t.TempDir()).Outbound(accepted, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, "").(*requests)
	c.far.done.Store(true)
	defer c.Close()
	push := func(timestamp int32) []byte { return pushOf(timestamp, 7, 1000) }
	// Before the first message of a read, and between two of one.
	w := &late{sieve: sieve{takes: -1, ends: -1}, c: c, queues: map[int32][]byte{1: push(101), 3: push(103)}}
	c.stream.watcher = w
	sent := greetingOf("DEALER", "ps9")
	want := slices.Clone(sent)
	for i := range int32(5) {
		sent = append(sent, push(i)...)
		if b := w.queues[i]; b != nil {
			want = slices.Concat(want, b, b)
		}
		want = append(want, push(i)...)
	}
	if _, err := client.Write(sent); err != nil {
		t.Fatal(err)
	}
	awaitIncoming(t, accepted, len(sent))
	var got []byte
	for p := make([]byte, 5000); len(got) < len(want); {
		n, err := c.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Error("the messages come in another order")
	}
}

// awaitIncoming waits until n bytes can be read at once.
func awaitIncoming(t *testing.T, c *net.TCPConn, n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	there := 0
	for end := time.Now().Add(time.Minute); there < n && time.Now().Before(end); time.Sleep(time.Millisecond) {
		if cErr := raw.Control(func(fd uintptr) { there, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); cErr != nil || err != nil {
			t.Fatal(cErr, err)
		}
	}
	if there < n {
		t.Fatalf("%d bytes have come, want %d", there, n)
	}
}

// Whatever pieces a process's messages come in and are read in, what the router
// does not take comes in order and whole, and what it puts in stands between two
// messages.
func TestReadInAnyPieces(t *testing.T) {
	for seed := range uint64(8) {
		client, accepted := connected(t)
		j, err := New(Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		c := j.Outbound(accepted, netip.MustParseAddrPort("10.0.0.2:9001"), Scope{}, "").(*requests)
		c.far.done.Store(true)
		w := &sieve{takes: 5, ends: -1}
		c.stream.watcher = w
		random := rand.New(rand.NewPCG(seed, 1))
		g := zmtp.NewGreeting(0, 0)
		greeting := zmtp.AppendReady(g[:], "DEALER", []byte("ps9"))
		const most, own = 200, 1 << 20 // messages; timestamps of those put in
		sent, want := slices.Clone(greeting), slices.Clone(greeting[len(g):])
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
				if _, err := client.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			client.(*net.TCPConn).CloseWrite()
		})
		puts := 0
		writing.Go(func() {
			for puts < 50 {
				meta := pslite.Meta{Timestamp: int32(own + puts)}
				if !c.enqueue(appendMessage(nil, [][]byte{meta.Append(nil, pslite.DMLC)})) {
					return // the process has ended
				}
				puts++
			}
		})
		var got []byte
		for err = nil; err == nil; {
			p, n := make([]byte, 1+random.IntN(1<<random.IntN(18))), 0
			n, err = c.Read(p)
			got = append(got, p[:n]...)
		}
		writing.Wait()
		if err != io.EOF || !bytes.HasPrefix(got, g[:]) {
			t.Fatalf("seed %d: %d bytes were read, %v", seed, len(got), err)
		}
		rest, between := withoutOwn(t, got[len(g):], own)
		if !bytes.Equal(rest, want) {
			t.Errorf("seed %d: %d bytes of the process's came, otherwise than %d that it sent", seed, len(rest), len(want))
		}
		if between != puts || len(w.taken) != most/10 {
			t.Errorf("seed %d: %d messages came of %d put in, and %d of %d were taken", seed, between, puts, len(w.taken), most/10)
		}
		c.Close()
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

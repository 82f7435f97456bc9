package jobs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// crossing is a job of BytePS's dialect with two servers and a worker, of whose
// keys 1 of server 0 is with server 1, and the second of server 1 with server 0.
func crossing(t *testing.T) (*job, [2]uint64) {
	t.Helper()
	x := oneJob(t, Options{})
	x.joinScopes([]Scope{{}})
	keys := [2]uint64{1, plan.HomeRange(1, 2).First + 1}
	x.router.Table().Set([]plan.Range{{Keys: plan.One(keys[0]), Owner: 1}, {Keys: plan.One(keys[1]), Owner: 0}})
	return x, keys
}

// wholePush is a push of BytePS's dialect, of one key.
func wholePush(timestamp int32, key uint64, size int) []byte {
	m := pslite.Meta{Request: true, Push: true, Timestamp: timestamp, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char, pslite.Int32}}
	m.Control.Cmd = pslite.NoCommand
	m.DataSize = int32(size + 12)
	m.BytePS = pslite.BytePS{Key: key, Addr: 0x7f0000001000, ValLen: int32(size)}
	vals := bytes.Repeat([]byte{byte(timestamp)}, size)
	return appendMessage(nil, [][]byte{m.Append(nil, pslite.BytePSRaw), pslite.AppendKeys(nil, []uint64{key}), vals, binary.LittleEndian.AppendUint32(nil, uint32(size))})
}

// wholeLine is the worker's connection to one of the servers. It is carried once it is read.
type wholeLine struct {
	*requests
	mesh    *mesh
	process net.Conn

	mu  sync.Mutex // guards got and err
	got []byte     // what has come to the server
	err error
}

// workerLine makes the worker's connection to a server, after its greetings.
func workerLine(t *testing.T, x *job, rank int) *wholeLine {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(9001+rank))
	next := require.Value(x.jobs.ResumeOutbound(at, Scope{}, "here", zmtp.AppendReady(nil, "DEALER", []byte("ps9"))[2:]))(t)
	l := &wholeLine{requests: next.(*requests)}
	l.mesh = newMesh(t, l.requests)
	l.mesh.near.Passing.Begun, l.mesh.far.Passing.Begun = true, true
	l.process = l.mesh.process
	t.Cleanup(func() {
		l.process.Close()
		l.mesh.destination.Close()
		l.mesh.running.Wait()
	})
	return l
}

// reading carries the connection, and reads until the end.
func (l *wholeLine) reading(t *testing.T, wg *sync.WaitGroup) {
	l.mesh.carry(t)
	wg.Go(func() {
		p := make([]byte, 64<<10)
		for {
			n, err := l.mesh.destination.Read(p)
			l.mu.Lock()
			l.got = append(l.got, p[:n]...)
			l.err = err
			l.mu.Unlock()
			if err != nil {
				l.mesh.destination.CloseWrite()
				return
			}
		}
	})
}

// timestamps are those of the messages that were read, in order; all must be whole.
func (l *wholeLine) timestamps(t *testing.T) (all []int32) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := l.got; len(rest) > 0; {
		h, n, err := zmtp.CutHeader(rest)
		if err != nil || n == 0 {
			t.Fatal("no whole message", err)
		}
		var m pslite.Meta
		require.NoError(t, m.Decode(rest[n:n+int(h.Size)], pslite.BytePSRaw))
		want := wholePush(m.Timestamp, m.BytePS.Key, int(m.BytePS.ValLen))
		if !bytes.HasPrefix(rest, want) {
			t.Fatalf("the push of timestamp %d did not come as it was sent", m.Timestamp)
		}
		all = append(all, m.Timestamp)
		rest = rest[len(want):]
	}
	return all
}

// awaitState waits for a state of the job.
func awaitState(t *testing.T, x *job, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, what, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return is()
	})
}

func (x *job) rerouted(n uint64) func() bool {
	return func() bool { return x.router.Counts().Rerouted == n }
}

// write has the process send pushes of a key with those timestamps.
func (l *wholeLine) write(t *testing.T, wg *sync.WaitGroup, key uint64, size int, from, to int32) {
	wg.Go(func() {
		for i := from; i < to; i++ {
			if _, err := l.process.Write(wholePush(i, key, size)); err != nil {
				t.Error(err)
				return
			}
		}
	})
}

func upTo(from, to int32) (all []int32) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

// Requests for a displaced key come whole and in order over the worker's connection to its
// owner, whether that is there already or not; others over that to the server they name.
func TestWholeRequestsTakeTheOwnersConnection(t *testing.T) {
	x, keys := crossing(t)
	var wg sync.WaitGroup
	a := workerLine(t, x, 0)
	a.reading(t, &wg)
	send := func(from, to int32) {
		for i := from; i < to; i++ {
			require.Value(a.process.Write(wholePush(i, []uint64{keys[0], 2}[i%2], 5000)))(t)
		}
	}
	send(0, 10)
	awaitState(t, x, "rerouted before there is a connection", x.rerouted(5))
	b := workerLine(t, x, 1)
	b.reading(t, &wg)
	send(10, 20)
	awaitState(t, x, "rerouted", x.rerouted(10))
	a.process.Close()
	b.process.Close()
	wg.Wait()
	if got := a.timestamps(t); !slices.Equal(got, []int32{1, 3, 5, 7, 9, 11, 13, 15, 17, 19}) {
		t.Errorf("over the asked server's connection came %v", got)
	}
	if got := b.timestamps(t); !slices.Equal(got, []int32{0, 2, 4, 6, 8, 10, 12, 14, 16, 18}) {
		t.Errorf("over the owner's connection came %v", got)
	}
	if s := x.state(); s.Plain != 10 || s.Rerouted != 10 || s.Split != 0 {
		t.Errorf("counted are %d plain, %d rerouted, %d split", s.Plain, s.Rerouted, s.Split)
	}
}

const mib = 1 << 20

// A connection with requests for one that takes none is not read beyond a bound, and goes
// on when that does. What the router has for it passes meanwhile.
func TestFullQueueHoldsUp(t *testing.T) {
	for _, c := range []struct {
		name     string
		connects bool
		size     int
		full     uint64 // messages of that size
	}{
		{"by bytes", true, mib, mostQueuedBytes / mib},
		{"by messages", true, 100, mostQueued},
		{"without a connection", false, 100, mostQueued},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, keys := crossing(t)
			var wg, writing sync.WaitGroup
			a := workerLine(t, x, 0)
			var b *wholeLine
			if c.connects {
				b = workerLine(t, x, 1)
			}
			a.reading(t, &wg)
			n := int32(c.full * 5 / 4)
			a.write(t, &writing, keys[0], c.size, 0, n)
			awaitState(t, x, "held up", func() bool { return x.heldUp[a.requests] })
			if got := x.state().Rerouted; got < c.full-1 || got > c.full {
				t.Errorf("%d messages of %d bytes are queued, the bound is %d", got, c.size, c.full)
			}
			own := wholePush(1000, 7, 100)
			if !a.enqueue(own) {
				t.Fatal("nothing can be put in")
			}
			require.Await(t, "the router's message passes while the process is held up", func() error {
				a.mu.Lock()
				defer a.mu.Unlock()
				if len(a.got) != len(own) {
					return fmt.Errorf("%d bytes of %d have", len(a.got), len(own))
				}
				return nil
			})
			if !c.connects {
				b = workerLine(t, x, 1)
			}
			b.reading(t, &wg)
			writing.Wait()
			awaitState(t, x, "all rerouted", x.rerouted(uint64(n)))
			a.process.Close()
			b.process.Close()
			wg.Wait()
			if got := b.timestamps(t); !slices.Equal(got, upTo(0, n)) {
				t.Errorf("over the owner's connection came %v", got)
			}
		})
	}
}

// Two connections, each with requests for the other at full speed, go on.
func TestHeldUpForEachOther(t *testing.T) {
	x, keys := crossing(t)
	var wg, writing sync.WaitGroup
	lines := []*wholeLine{workerLine(t, x, 0), workerLine(t, x, 1)}
	const n = 3 * mostQueued
	for i, l := range lines {
		l.write(t, &writing, keys[i], 1000, 0, n)
	}
	lines[0].reading(t, &wg)
	awaitState(t, x, "held up", func() bool { return x.heldUp[lines[0].requests] })
	lines[1].reading(t, &wg)
	writing.Wait()
	awaitState(t, x, "all rerouted", x.rerouted(2*n))
	for i, l := range lines {
		l.process.Close()
		defer func() {
			if got := l.timestamps(t); !slices.Equal(got, upTo(0, n)) {
				t.Errorf("over the connection to server %d came %v", i, got)
			}
		}()
	}
	wg.Wait()
}

// A process that ends while it is held up is read to its end: nobody else would notice.
func TestEndWhileHeldUp(t *testing.T) {
	x, keys := crossing(t)
	var wg, writing sync.WaitGroup
	a, b := workerLine(t, x, 0), workerLine(t, x, 1)
	a.reading(t, &wg)
	const full = mostQueued
	a.write(t, &writing, keys[0], 100, 0, full+20)
	writing.Wait()
	awaitState(t, x, "held up", func() bool { return x.heldUp[a.requests] })
	require.NoError(t, a.process.(*net.TCPConn).CloseWrite())
	wg.Wait()
	if a.err != io.EOF {
		t.Errorf("the end is %v", a.err)
	}
	b.reading(t, &wg)
	b.process.Close()
	wg.Wait()
	if got := b.timestamps(t); !slices.Equal(got, upTo(0, full+20)) {
		t.Errorf("over the owner's connection came %v", got)
	}
}

// A connection that is held up can be handed over: the next proxy's goes on with what was
// read and not taken.
func TestHandOverWhileHeldUp(t *testing.T) {
	x, keys := crossing(t)
	var wg, writing sync.WaitGroup
	a, b := workerLine(t, x, 0), workerLine(t, x, 1)
	a.reading(t, &wg)
	const n = mostQueued + 100
	a.write(t, &writing, keys[0], 100, 0, n)
	awaitState(t, x, "held up", func() bool { return x.heldUp[a.requests] })
	ready := zmtp.AppendReady(nil, "DEALER", []byte("ps9"))[2:]
	next := require.Value(x.jobs.ResumeOutbound(a.destination, Scope{}, "here", ready))(t)
	if !a.mesh.pass(t, next) {
		t.Fatal("the connection has ended")
	}
	if len(a.mesh.near.Passing.Left) == 0 {
		t.Error("nothing is left of what was read")
	}
	a.mesh.carry(t)
	b.reading(t, &wg)
	writing.Wait()
	awaitState(t, x, "all rerouted", x.rerouted(n))
	a.process.Close()
	b.process.Close()
	wg.Wait()
	if got := b.timestamps(t); !slices.Equal(got, upTo(0, n)) {
		t.Errorf("over the owner's connection came %v", got)
	}
}

// A request for a displaced key waits until it is known where keys are.
func TestWholeRequestWaitsForTheRouter(t *testing.T) {
	x, keys := crossing(t)
	closed := route.New(x.router.Table())
	x.mu.Lock()
	open := x.router
	x.router = closed
	x.mu.Unlock()
	var wg, writing sync.WaitGroup
	a, b := workerLine(t, x, 0), workerLine(t, x, 1)
	a.reading(t, &wg)
	b.reading(t, &wg)
	a.write(t, &writing, keys[0], 1000, 0, 3)
	awaitState(t, x, "held up", func() bool { return x.heldUp[a.requests] })
	x.mu.Lock()
	x.router = open
	x.mu.Unlock()
	x.letGo()
	awaitState(t, x, "rerouted", x.rerouted(3))
	a.process.Close()
	b.process.Close()
	wg.Wait()
	writing.Wait()
	if got := b.timestamps(t); !slices.Equal(got, upTo(0, 3)) {
		t.Errorf("over the owner's connection came %v", got)
	}
}

// What a worker of BytePS's own benchmark sent to two servers, with a third of its keys displaced,
// comes as it was over the connections to their owners, in order of each key; the answers that it
// got come as they were over those.
func TestRecordingIsRerouted(t *testing.T) {
	file := require.Value(os.Open(require.Capture(t, "byteps-kv-2s2w.pcapng")))(t)
	defer file.Close()
	x := oneJob(t, Options{})
	x.joinScopes([]Scope{{}})
	type sent struct {
		rank    int
		key     uint64
		message []byte
	}
	var asked, answered []sent
	var seen []uint64
	if _, err := capture.Read(file, capture.Options{Data: true}, func(m *capture.Message) error {
		worker, server, all := m.From, m.To, &asked
		if !m.Meta.Request {
			worker, server, all = m.To, m.From, &answered
		}
		if !m.Meta.Data() || worker != "worker0" || !strings.HasPrefix(server, "server") {
			return nil
		}
		var frames [][]byte
		if m.Identity != nil {
			frames = append(frames, m.Identity)
		}
		frames = append(append(frames, m.Meta.Append(nil, m.Dialect)), m.Data...)
		key := m.Meta.BytePS.Key
		if m.Meta.Request {
			key = m.Keys().At(0)
			if !slices.Contains(seen, key) {
				seen = append(seen, key)
			}
		}
		*all = append(*all, sent{int(server[len("server")] - '0'), key, appendMessage(nil, frames)})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	displaced := map[uint64]bool{}
	for i, key := range seen {
		if i%3 == 0 {
			displaced[key] = true
			x.router.Table().Set([]plan.Range{{Keys: plan.One(key), Owner: 1 - plan.HomeOf(key, 2)}})
		}
	}
	var wg sync.WaitGroup
	lines := []*wholeLine{workerLine(t, x, 0), workerLine(t, x, 1)}
	want := [2]map[uint64][]byte{{}, {}} // by the server that has it, and key
	rerouted := uint64(0)
	for _, l := range lines {
		l.reading(t, &wg)
	}
	for _, a := range asked {
		owner := a.rank
		if displaced[a.key] {
			owner = 1 - a.rank
			rerouted++
		}
		want[owner][a.key] = append(want[owner][a.key], a.message...)
		require.Value(lines[a.rank].process.Write(a.message))(t)
	}
	if rerouted == 0 || len(asked) < 20 || len(answered) != len(asked) {
		t.Fatalf("of %d requests, which have %d answers, %d are for displaced keys", len(asked), len(answered), rerouted)
	}
	for i, l := range lines {
		var back []byte
		for _, a := range answered {
			if a.rank == i {
				back = append(back, a.message...)
			}
		}
		wg.Go(func() {
			if n, err := l.mesh.destination.Write(back); n != len(back) || err != nil {
				t.Errorf("%d bytes of answers passed, %v; want %d", n, err, len(back))
			}
		})
		got := make([]byte, len(back))
		if _, err := io.ReadFull(l.process, got); err != nil || !bytes.Equal(got, back) {
			t.Errorf("answers of server %d came otherwise: %v", i, err)
		}
	}
	awaitState(t, x, "rerouted", x.rerouted(rerouted))
	for _, l := range lines {
		l.process.Close()
	}
	wg.Wait()
	for i, l := range lines {
		got := map[uint64][]byte{}
		for rest := l.got; len(rest) > 0; {
			total := 0
			for more := true; more; {
				h, n, err := zmtp.CutHeader(rest[total:])
				if err != nil || n == 0 || len(rest) < total+n+int(h.Size) {
					t.Fatal("no whole message", err)
				}
				total, more = total+n+int(h.Size), h.More()
			}
			frames := require.Value(cutMessage(rest[:total]))(t)
			key := pslite.Keys(frames[1]).At(0)
			got[key] = append(got[key], rest[:total]...)
			rest = rest[total:]
		}
		if !maps.EqualFunc(got, want[i], bytes.Equal) {
			t.Errorf("over the connection to server %d came %d keys, want %d, each as it was sent", i, len(got), len(want[i]))
		}
	}
	t.Logf("%d of %d requests were rerouted, of %d of %d keys", rerouted, len(asked), len(displaced), len(seen))
}

package aggregate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// places is how many pushes a world can tell apart: each adds 1 at a place of its own
// in the values of its subject.
const places = Least / 8

var scope = jobs.Scope{Cgroup: 1, Netns: 2}

// world is workers of one host, a server that adds, and the connections between them,
// of which each step moves one on.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	log     strings.Builder
	table   *Table
	group   *group
	now     time.Time
	workers []*worker
	store   [3][places]int64 // of each subject, how often each push was applied
	next    [3]int           // place of the next push
	breaks  int              // that may still come
	waits   bool             // the server answers pushes only when those of all workers are there
	held    []func()         // its answers then
}

// worker is one, with its connection there and the server's back.
type worker struct {
	id       int32
	queue    *Queue
	hearer   *Hearer
	messages []*sent // that it wants to send, the first of which may be shown
	link     []*sent // written, and not arrived
	out      []*sent // got of the queue, not written
	back     []answer
	unsent   int
	ts       int32
	mine     []*sent // all pushes
	down     bool    // it has no connection
}

type sent struct {
	frames  [][]byte
	subject int
	place   int // of a push
	pull    bool
	ts      int32
	done    bool // its worker has heard so
	there   bool // the server has had the message
}

type answer struct {
	of   *sent
	meta []byte
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(7000+i))
}

func newWorld(t testing.TB, seed uint64, workers int, wait time.Duration) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 5)), now: time.Unix(1000, 0)}
	var err error
	if w.table, err = New(Options{Wait: wait, Bytes: 3 * Least, AnswerWithin: time.Second, now: func() time.Time { return w.now }, manual: true}); err != nil {
		t.Fatal(err)
	}
	var m pslite.Meta
	m.Reset()
	m.Control.Cmd = pslite.AddNode
	m.Control.Nodes = []pslite.Node{{Role: pslite.Scheduler, ID: 1, Hostname: "10.0.0.1", Port: 7001}, {Role: pslite.Server, ID: 8, Hostname: "10.0.0.1", Port: 7008}}
	for i := range workers {
		id := pslite.WorkerID(i)
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{Role: pslite.Worker, ID: id, Hostname: "10.0.0.1", Port: 7000 + id})
	}
	h := w.table.Hearer(scope, address(int(pslite.WorkerID(0))))
	h.Ready(zmtp.Ready{Identity: []byte("ps1")})
	h.Hear(m.Append(nil, pslite.DMLC))
	for i := range workers {
		k := &worker{id: pslite.WorkerID(i)}
		w.workers = append(w.workers, k)
		w.connect(k)
		w.listen(k)
		k.hearer.known()
		k.hearer.pair.answers++ // of a push before
	}
	return w
}

// connect makes a worker's connection, whose first pushes have gone.
func (w *world) connect(k *worker) {
	k.queue = w.table.Queue(Link{
		Scope: scope, Destination: address(8), Wake: func() {}, Wanted: func(string, measure.KeyRange) bool { return true }, Drops: func() bool { return false },
		Unsent: func() int { return k.unsent }, Unacked: func() int { return k.unsent + len(k.link) },
	})
	k.queue.Ready(zmtp.Ready{Identity: pslite.AppendIdentity(nil, k.id)})
	if why := k.queue.known(); why != "" {
		w.t.Fatal(why)
	}
	w.group = k.queue.group
	for subject := range w.next {
		m := w.push(k, subject, 0)
		var d pslite.Message
		if _, err := d.Decode(new(pslite.Detector), m.frames); err != nil {
			w.t.Fatal(err)
		}
		s := subjectOf(&d, Least)
		k.queue.seen[s.about()] = true
	}
	k.messages, k.link, k.out, k.unsent = nil, nil, nil, 0
}

func (w *world) listen(k *worker) {
	k.hearer = w.table.Hearer(scope, address(int(k.id)))
	k.hearer.Ready(zmtp.Ready{Identity: []byte("ps8")})
	k.back = nil
}

func meta(ts int32, request, push bool) []byte {
	var m pslite.Meta
	m.Reset()
	m.AppID, m.CustomerID, m.Timestamp, m.Request, m.Push, m.Pull, m.Head = 0, 0, ts, request, push, !push, 0
	m.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Int64, pslite.Int32}
	return m.Append(nil, pslite.DMLC)
}

func (w *world) push(k *worker, subject, place int) *sent {
	k.ts++
	values := make([]byte, Least)
	binary.LittleEndian.PutUint64(values[8*place:], 1)
	return &sent{frames: [][]byte{meta(k.ts, true, true), pslite.AppendKeys(nil, []uint64{uint64(subject), 100}), values}, subject: subject, place: place, ts: k.ts}
}

func (w *world) pull(k *worker, subject int) *sent {
	k.ts++
	return &sent{frames: [][]byte{meta(k.ts, true, false), pslite.AppendKeys(nil, []uint64{uint64(subject), 100}), {}}, subject: subject, ts: k.ts, pull: true}
}

func (w *world) note(format string, args ...any) { fmt.Fprintf(&w.log, format+"\n", args...) }

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), w.log.String())
}

// want has a worker want to push or pull.
func (w *world) want(k *worker) {
	subject := w.rng.IntN(len(w.next))
	if k.down || len(k.messages) > 3 || w.next[subject] == places {
		return
	}
	var m *sent
	if w.rng.IntN(3) == 0 {
		m = w.pull(k, subject)
	} else {
		m = w.push(k, subject, w.next[subject])
		w.next[subject]++
		k.mine = append(k.mine, m)
	}
	k.messages = append(k.messages, m)
	w.note("worker %d wants pull %v of subject %d place %d ts %d", k.id, m.pull, m.subject, m.place, m.ts)
}

// show shows the next message to the queue, as the relay does, after all that is due.
func (w *world) show(k *worker) {
	if k.down {
		k.down = false
		w.connect(k)
	}
	w.due(k)
	if len(k.messages) == 0 || k.queue.failed {
		return
	}
	m := k.messages[0]
	if w.rng.IntN(4) == 0 && !k.queue.Wants(&relay.Message{Frames: m.frames[:2], Rest: true, Next: uint64(len(m.frames[2]))}) {
		rest := &relay.Message{Frames: m.frames[:2], Rest: true, Next: uint64(len(m.frames[2]))}
		if k.queue.Take(rest) != relay.Passes {
			return
		}
	} else {
		switch k.queue.Take(&relay.Message{Frames: m.frames}) {
		case relay.Waits:
			return
		case relay.Took:
			w.note("worker %d ts %d is taken", k.id, m.ts)
			k.messages = k.messages[1:]
			return
		}
	}
	w.note("worker %d ts %d passes", k.id, m.ts)
	k.messages = k.messages[1:]
	k.out = append(k.out, m)
}

// due takes what the queue has to send.
func (w *world) due(k *worker) {
	for !k.down {
		frames, err := k.queue.Due()
		if err != nil {
			w.note("worker %d: %v", k.id, err)
			w.cut(k)
			return
		}
		if frames == nil {
			return
		}
		var copied [][]byte
		for _, f := range frames {
			copied = append(copied, append([]byte(nil), f...))
		}
		ts := timestamp(w.t, frames[0])
		for _, m := range k.mine {
			if m.ts == ts {
				m.frames = copied
				k.out = append(k.out, m)
			}
		}
		w.note("worker %d ts %d is due", k.id, ts)
	}
}

func timestamp(t testing.TB, b []byte) int32 {
	var m pslite.Meta
	if _, err := new(pslite.Detector).Decode(b, &m); err != nil {
		t.Fatal(err)
	}
	return m.Timestamp
}

// write writes what was got of the queue.
func (w *world) write(k *worker) {
	if len(k.out) == 0 {
		return
	}
	k.link = append(k.link, k.out...)
	k.out = nil
	if w.rng.IntN(2) == 0 {
		k.unsent = lowWater + 1
	}
	k.queue.Written()
}

// arrive has the server get the next message of a worker's.
func (w *world) arrive(k *worker) {
	if len(k.link) == 0 {
		return
	}
	m := k.link[0]
	k.link = k.link[1:]
	if len(k.link) == 0 {
		k.unsent = 0
	}
	w.note("the server gets worker %d ts %d", k.id, m.ts)
	if m.there {
		w.fail("worker %d ts %d arrives twice", k.id, m.ts)
	}
	m.there = true
	for _, o := range k.mine {
		if o.ts > m.ts && o.there {
			w.fail("worker %d ts %d arrives after ts %d", k.id, m.ts, o.ts)
		}
	}
	if m.pull {
		w.read(k, m)
		return
	}
	for i := range places {
		w.store[m.subject][i] += int64(binary.LittleEndian.Uint64(m.frames[2][8*i:]))
		if w.store[m.subject][i] > 1 {
			w.fail("push %d of subject %d was applied twice", i, m.subject)
		}
	}
	to := k
	reply := func() { to.back = append(to.back, answer{m, meta(m.ts, false, true)}) }
	if w.waits {
		w.held = append(w.held, reply)
		return
	}
	reply()
}

// read is a pull at the server: what its worker pushed before has been applied.
func (w *world) read(k *worker, m *sent) {
	for _, o := range k.mine {
		if o.ts < m.ts && o.there && w.store[o.subject][o.place] != 1 {
			w.fail("worker %d pulls after its push ts %d has arrived, and before it is applied", k.id, o.ts)
		}
	}
}

// answer brings an answer to a worker.
func (w *world) answer(k *worker) {
	if len(k.back) == 0 {
		return
	}
	a := k.back[0]
	k.back = k.back[1:]
	w.note("worker %d hears of ts %d", k.id, a.of.ts)
	k.hearer.Hear(a.meta)
	if !w.waits && w.store[a.of.subject][a.of.place] != 1 {
		w.fail("worker %d hears that its push ts %d was applied, which it was not", k.id, a.of.ts)
	}
	a.of.done = true
}

// cut breaks a worker's connection to the server: what was on it is lost, as of some
// message, and the worker makes another.
func (w *world) cut(k *worker) {
	w.note("worker %d is cut off", k.id)
	for i := w.rng.IntN(len(k.link) + 1); i > 0; i-- {
		w.arrive(k)
	}
	k.queue.Close()
	k.messages, k.link, k.out, k.unsent, k.down = nil, nil, nil, 0, true
}

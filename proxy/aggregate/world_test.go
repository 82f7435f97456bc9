package aggregate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// lists are the keys of pushes: some have keys in common, one is a part of another, and one
// shares nothing.
var lists = [][]uint64{{1, 2, 3, 4}, {3, 4, 5, 6}, {2, 3}, {7, 8}, {1, 4, 6, 9}}

// row is the size of a key's values. places is how many pushes a world can tell apart: each adds
// 1 at a place of its own to the values of each of its keys.
const (
	row    = Least / 2
	places = row / 8
)

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
	store   map[uint64]*[places]int64 // by key, how often each push was applied
	next    int                       // place of the next push
	breaks  int                       // that may still come
	fresh   bool                      // new connections have pushed nothing
	lens    bool                      // messages have lens
	rows    int                       // keys with values other than 0 that the server got
	waits   bool                      // the server answers pushes only when those of all workers are there
	held    []func()                  // its answers then
	// The server answers pushes of a list when as many of it have come from all workers: its answers to each
	// worker's pushes that are still to go, by list; nil: it does not.
	rounds map[int]map[*worker][]func()

	resend bool // the job uses PS_RESEND
	tested bool // the server is known to answer pushes one by one
}

// worker is one, with its connection there and the server's back.
type worker struct {
	id       int32
	queue    *Queue
	hearer   *Hearer
	messages []*sent  // that it wants to send, the first of which may be shown
	link     []flight // written, and not arrived
	out      []flight // got of the queue, not written
	back     []answer
	unsent   int
	ts       int32
	mine     []*sent         // all pushes
	down     bool            // it has no connection
	pushed   map[uint64]bool // keys, over this connection
}

type sent struct {
	frames [][]byte
	list   int
	place  int // of a push
	pull   bool
	ts     int32
	firsts map[uint64]bool // keys that its connection had not pushed before, when it was shown first
	done   bool            // its worker has heard so
	there  bool            // the server has had the message
	cut    bool            // its connection ended before
	acked  bool            // its worker will not repeat it, with PS_RESEND
}

// flight is a message on its way, with the values that the queue gave it.
type flight struct {
	*sent
	frames [][]byte
}

type answer struct {
	of    *sent
	meta  []byte
	isAck bool
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(7000+i))
}

// newWorld returns a world in which the server is known to answer pushes one by one.
func newWorld(t testing.TB, seed uint64, workers int, wait time.Duration, fresh bool) *world {
	return newUntested(t, seed, workers, wait, fresh, true)
}

func newUntested(t testing.TB, seed uint64, workers int, wait time.Duration, fresh, tested bool) *world {
	w := &world{tested: tested, t: t, rng: rand.New(rand.NewPCG(seed, 5)), now: time.Unix(1000, 0), fresh: fresh, store: map[uint64]*[places]int64{}}
	w.lens = w.rng.IntN(4) == 0
	for _, list := range lists {
		for _, key := range list {
			w.store[key] = new([places]int64)
		}
	}
	var err error
	w.table, err = New(Options{Wait: wait, Bytes: 8 * Least, AnswerWithin: time.Second, now: func() time.Time { return w.now }, manual: true, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	w.meet(workers)
	for i := range workers {
		k := &worker{id: pslite.WorkerID(i)}
		w.workers = append(w.workers, k)
		w.connect(k)
		w.listen(k)
	}
	return w
}

// meet has the job's node table come.
func (w *world) meet(workers int) {
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
}

// connect makes a worker's connection. Its first pushes have gone, unless it is to be fresh.
func (w *world) connect(k *worker) {
	k.queue = w.table.Queue(Link{
		Scope: scope, Destination: address(8), Wake: func() {}, Wanted: func(string, measure.KeyRange) bool { return true }, Drops: func() bool { return false },
		Unsent: func() int { return k.unsent }, Unacked: func() int { return k.unsent + len(k.link) },
	})
	k.queue.Ready(zmtp.Ready{Identity: pslite.AppendIdentity(nil, k.id)})
	if why := k.queue.known(); why != "" {
		w.t.Fatal(why)
	}
	if w.group == nil {
		w.group = k.queue.group
		w.group.tested[handler{}] = w.tested
	}
	k.pushed = map[uint64]bool{}
	for list, keys := range lists {
		if !w.fresh {
			w.learn(k, w.push(k, list, 0))
			for _, key := range keys {
				k.pushed[key] = true
			}
		}
	}
	k.messages, k.link, k.out, k.unsent = nil, nil, nil, 0
}

// learn has a worker's queue know that a push was made before.
func (w *world) learn(k *worker, m *sent) {
	var d pslite.Message
	require.Value(d.Decode(new(pslite.Detector), m.frames))(w.t)
	s := subjectOf(&d, len(d.Data[1]))
	k.queue.seen.learn(&s)
}

func (w *world) listen(k *worker) {
	k.hearer = w.table.Hearer(scope, address(int(k.id)))
	k.hearer.Ready(zmtp.Ready{Identity: []byte("ps8")})
	k.back = nil
	k.hearer.known() // it has heard an answer before
}

func meta(ts int32, request, push bool) []byte {
	var m pslite.Meta
	m.Reset()
	m.AppID, m.CustomerID, m.Timestamp, m.Request, m.Push, m.Pull, m.Head = 0, 0, ts, request, push, !push, 0
	m.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Int64, pslite.Int32}
	return m.Append(nil, pslite.DMLC)
}

func (w *world) push(k *worker, list, place int) *sent {
	k.ts++
	keys := lists[list]
	values := make([]byte, row*len(keys))
	for i := range keys {
		binary.LittleEndian.PutUint64(values[row*i+8*place:], 1)
	}
	m := &sent{frames: [][]byte{meta(k.ts, true, true), pslite.AppendKeys(nil, keys), values}, list: list, place: place, ts: k.ts}
	if w.lens {
		m.frames = append(m.frames, pslite.AppendLens(nil, slices.Repeat([]int32{places}, len(keys))))
	}
	return m
}

func (w *world) pull(k *worker, list int) *sent {
	k.ts++
	return &sent{frames: [][]byte{meta(k.ts, true, false), pslite.AppendKeys(nil, lists[list]), {}}, list: list, ts: k.ts, pull: true}
}

// pushes has a worker want to push a list.
func (w *world) pushes(k *worker, list int) {
	m := w.push(k, list, w.next)
	w.next++
	k.mine, k.messages = append(k.mine, m), append(k.messages, m)
}

// applied returns how many keys of a push the server has applied.
func (w *world) applied(m *sent) (n int) {
	for _, key := range lists[m.list] {
		n += int(w.store[key][m.place])
	}
	return n
}

// isWhole reports whether the server has applied all of a push.
func (w *world) isWhole(m *sent) bool { return w.applied(m) == len(lists[m.list]) }

func (w *world) note(format string, args ...any) { fmt.Fprintf(&w.log, format+"\n", args...) }

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), w.log.String())
}

// want has a worker want to push or pull.
func (w *world) want(k *worker) {
	if k.down || len(k.messages) > 3 || w.next == places {
		return
	}
	list := w.rng.IntN(len(lists))
	if w.rng.IntN(3) == 0 {
		k.messages = append(k.messages, w.pull(k, list))
	} else {
		w.pushes(k, list)
	}
	m := k.messages[len(k.messages)-1]
	w.note("worker %d wants pull %v of list %d place %d ts %d", k.id, m.pull, m.list, m.place, m.ts)
}

// show shows the next message to the queue, as the relay does, after all that is due.
func (w *world) show(k *worker) {
	if k.down {
		k.down = false
		w.connect(k)
	}
	w.due(k)
	if len(k.messages) == 0 || k.queue.failed != nil {
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
			k.shown(m)
			return
		}
	}
	w.note("worker %d ts %d passes", k.id, m.ts)
	k.shown(m)
	k.out = append(k.out, flight{m, m.frames})
}

// shown notes that the first message of a worker's has gone to its queue, or past it.
func (k *worker) shown(m *sent) {
	k.messages = k.messages[1:]
	if m.pull {
		return
	}
	isFirst := m.firsts == nil
	if isFirst {
		m.firsts = map[uint64]bool{}
	}
	for _, key := range lists[m.list] {
		m.firsts[key] = m.firsts[key] || isFirst && !k.pushed[key]
		k.pushed[key] = true
	}
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
				k.out = append(k.out, flight{m, copied})
			}
		}
		w.note("worker %d ts %d is due", k.id, ts)
	}
}

func timestamp(t testing.TB, b []byte) int32 {
	var m pslite.Meta
	require.Value(new(pslite.Detector).Decode(b, &m))(t)
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
	if w.resend && !m.pull {
		if w.lose(k, m) {
			return
		}
	} else if m.there {
		w.fail("worker %d ts %d arrives twice", k.id, m.ts)
	}
	w.note("the server gets worker %d ts %d", k.id, m.ts)
	m.there = true
	for _, o := range k.mine {
		if o.ts > m.ts && o.there && !w.resend {
			w.fail("worker %d ts %d arrives after ts %d", k.id, m.ts, o.ts)
		}
	}
	if m.pull {
		w.read(k, m.sent)
		return
	}
	w.apply(k, m)
	to := k
	reply := func() { to.back = append(to.back, answer{of: m.sent, meta: meta(m.ts, false, true)}) }
	if w.rounds != nil {
		w.meetRound(k, m.list, reply)
		return
	}
	if w.waits {
		w.held = append(w.held, reply)
		return
	}
	reply()
}

// apply adds a push that has arrived to the server's values. It has the keys that its worker gave
// it, and of keys that the worker pushes for the first time its values alone.
func (w *world) apply(k *worker, m flight) {
	if !bytes.Equal(m.frames[1], pslite.AppendKeys(nil, lists[m.list])) {
		w.fail("worker %d ts %d arrives with other keys", k.id, m.ts)
	}
	for i, key := range lists[m.list] {
		values, sum := m.frames[2][row*i:row*(i+1)], int64(0)
		for p := range places {
			n := int64(binary.LittleEndian.Uint64(values[8*p:]))
			sum += n
			if w.store[key][p] += n; w.store[key][p] > 1 {
				w.fail("push %d was applied twice to key %d", p, key)
			}
		}
		if sum > 0 {
			w.rows++
		}
		if m.firsts[key] && (sum != 1 || w.store[key][m.place] != 1) {
			w.fail("worker %d ts %d has %d values of key %d, which it pushes for the first time", k.id, m.ts, sum, key)
		}
	}
}

// read is a pull at the server: what its worker pushed before has been applied.
func (w *world) read(k *worker, m *sent) {
	for _, o := range k.mine {
		if o.ts < m.ts && o.there && !w.isWhole(o) {
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
	if a.isAck {
		a.of.acked = a.of.acked || w.rng.IntN(4) > 0 // or the worker loses it
		return
	}
	if !w.waits && !w.isWhole(a.of) {
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
	for _, m := range k.mine {
		m.cut = m.cut || !m.there
	}
	k.messages, k.link, k.out, k.unsent, k.down = nil, nil, nil, 0, true
}

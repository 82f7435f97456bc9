package route

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Whatever keys are in parts, whole elsewhere or at home, and whichever way they go while
// the worker makes requests, it gets the very bytes that one server with all keys answers:
// with messages in any order between servers, with the router killed, or ended in order, at
// any moment, with lengths and without, and with PS_RESEND with any message lost.
func TestKeysInPartsGetTheBytesOfOneServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newPartsWorld(t)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "moves") {
				w.move()
				continue
			}
			w.ask()
		}
		w.checkNothingLeft()
	})
}

// full is a ledger that outlives its router.
type full struct {
	lasting
	resend, split bool
	seen          map[ID]bool
}

func (l *full) Resend() bool { return l.resend }
func (l *full) UseResend()   { l.resend = true }
func (l *full) Open(k Kept) {
	l.lasting.Open(k)
	l.seen[k.ID] = true
	l.split = l.split || k.Own != 0
}
func (l *full) Mark(id ID, f Flags) {
	k := l.open[id]
	k.Flags = f
	l.open[id] = k
}
func (l *full) Seen(id ID) bool { return l.seen[id] }
func (l *full) Split() bool     { return l.split }

// message between the router and a server.
type crossing struct {
	server  int32
	toRoute bool
	frames  [][]byte
}

// partsWorld is a job of one worker, with servers that add, and one that has all that
// they should have together.
type partsWorld struct {
	*rapid.T
	withLens  bool
	keys      []uint64 // at home with any server
	widths    map[uint64]int
	servers   []adding
	whole     adding
	ledger    *full
	table     *Table
	router    *Router
	network   []crossing
	seen      map[uint64]bool     // signatures that servers have taken
	unacked   map[uint64]crossing // answers that servers say again
	timestamp int32
	asked     map[int32][][]byte // requests by server, while they are under way
	acked     map[int32]bool
	got       map[int32][][]byte
	done      *Op
}

const partsWorker = int32(9)

func newPartsWorld(t *rapid.T) *partsWorld {
	n := rapid.IntRange(2, 5).Draw(t, "servers")
	w := &partsWorld{T: t, withLens: rapid.Bool().Draw(t, "lens"), widths: map[uint64]int{}, whole: adding{},
		ledger: &full{lasting: lasting{open: map[ID]Kept{}}, resend: rapid.Bool().Draw(t, "resend"), seen: map[ID]bool{}},
		table:  NewTable(n), seen: map[uint64]bool{}, unacked: map[uint64]crossing{}}
	width := rapid.IntRange(2*n, 30).Draw(t, "width")
	for home := range int32(n) {
		w.servers = append(w.servers, adding{})
		for offset := range uint64(rapid.IntRange(1, 3).Draw(t, "keys")) {
			key := plan.HomeRange(home, n).First + 7*offset
			w.keys = append(w.keys, key)
			if w.widths[key] = width; w.withLens {
				w.widths[key] = 2*n + int(offset)*3
			}
		}
	}
	w.begin()
	w.request(true, false, w.keys)
	return w
}

// begin makes a router on the ledger.
func (w *partsWorld) begin() {
	w.router = New(w.table)
	if !w.ledger.resend && rapid.Bool().Draw(w.T, "gather") {
		w.router.Gather()
	}
	w.router.AddWorker(partsWorker, w.ledger)
	w.router.Open(w.table)
	w.collect()
}

// ask makes a request of the worker for some keys.
func (w *partsWorld) ask() {
	kinds := [][2]bool{{true, false}, {false, true}, {true, true}}
	kind := rapid.SampledFrom(kinds).Draw(w.T, "kind")
	keys := slices.DeleteFunc(slices.Clone(w.keys), func(uint64) bool { return !rapid.Bool().Draw(w.T, "asks") })
	w.request(kind[0], kind[1], keys)
}

// request has the worker send each server its slice, and waits for all answers.
func (w *partsWorld) request(push, pull bool, keys []uint64) {
	w.timestamp++
	w.asked, w.acked, w.got = map[int32][][]byte{}, map[int32]bool{}, map[int32][][]byte{}
	want := map[int32][][]byte{}
	for server := range int32(len(w.servers)) {
		mine := slices.DeleteFunc(slices.Clone(keys), func(k uint64) bool { return plan.HomeOf(k, len(w.servers)) != server })
		if len(mine) == 0 {
			continue
		}
		w.asked[server] = w.compose(push, pull, mine)
		want[server] = w.whole.answer(w.decode(w.asked[server]), pslite.DMLC)
	}
	for _, server := range slices.Sorted(maps.Keys(w.asked)) {
		w.send(server)
	}
	w.until(func() bool { return len(w.got) == len(want) && (!w.ledger.resend || len(w.acked) == len(want)) })
	for _, server := range slices.Sorted(maps.Keys(want)) {
		if !slices.EqualFunc(w.got[server], want[server], bytes.Equal) {
			w.Fatalf("server %d's slice is answered by\n%x, want\n%x", server, w.got[server], want[server])
		}
	}
}

func (w *partsWorld) compose(push, pull bool, keys []uint64) [][]byte {
	var m pslite.Meta
	m.Reset()
	m.Timestamp, m.Request, m.Push, m.Pull = w.timestamp, true, push, pull
	m.AppID, m.CustomerID = 0, 0
	m.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	data := [][]byte{pslite.AppendKeys(nil, keys), {}}
	var lens []byte
	var vals []float32
	for _, k := range keys {
		lens = append(lens, byte(w.widths[k]), 0, 0, 0)
		for i := range w.widths[k] {
			vals = append(vals, float32(int(w.timestamp)*3+i+int(k%5)))
		}
	}
	if push {
		data[1] = pslite.AppendFloat32(nil, vals)
	}
	if w.withLens {
		data, m.DataTypes = append(data, lens), append(m.DataTypes, pslite.Int32)
	}
	m.DataSize = int32(total(data))
	return append([][]byte{m.Append(nil, pslite.DMLC)}, data...)
}

func (w *partsWorld) decode(frames [][]byte) *pslite.Message {
	m, err := message(frames, pslite.DMLC)
	if err != nil {
		w.Fatal(err)
	}
	return &m
}

// send has the worker say a request, perhaps again.
func (w *partsWorld) send(server int32) {
	m := w.decode(w.asked[server])
	if w.router.Request(partsWorker, server, &m.Meta, m.Keys(), pslite.DMLC) {
		w.network = append(w.network, crossing{server: server, frames: w.asked[server]})
	} else if err := w.router.Take(partsWorker, server, m, pslite.DMLC); err != nil {
		w.Fatal(err)
	}
	w.collect()
}

// collect carries out what the router has to say.
func (w *partsWorld) collect() {
	for out := w.router.Out(); len(out) > 0; out = w.router.Out() {
		for _, o := range out {
			switch {
			case o.Op != nil:
				w.done = o.Op
			case o.ToWorker:
				w.workerTakes(o.Server, o.Frames)
			case o.Frames == nil:
				w.Fatal("a request that waited could not be dispatched")
			default:
				w.network = append(w.network, crossing{server: o.Server, frames: o.Frames})
			}
		}
	}
}

// workerTakes gives the worker an answer or an ACK.
func (w *partsWorld) workerTakes(server int32, frames [][]byte) {
	m := w.decode(frames)
	if m.Meta.Control.Cmd == pslite.Ack {
		w.acked[server] = true
		return
	}
	if m.Meta.Timestamp == w.timestamp {
		w.got[server] = frames
	}
	if !w.ledger.resend {
		return
	}
	signature := pslite.Signature(&m.Meta, pslite.ServerID(int(server)), partsWorker)
	if w.router.WorkerAck(partsWorker, server, signature) {
		w.network = append(w.network, crossing{server: server, frames: [][]byte{ack(pslite.DMLC, signature)}})
	}
}

// until has messages arrive, in any order, and what may happen happen, until all is as it
// should be.
func (w *partsWorld) until(done func() bool) {
	for faults := 0; !done(); {
		switch n := len(w.network); {
		case n == 0 && w.ledger.resend:
			w.repeat()
		case n == 0 && w.router.Gathering():
			w.router.EndGathers()
			w.collect()
		case n == 0:
			w.Fatalf("nothing is under way, and %v", w.router.UnderWay())
		default:
			at := rapid.IntRange(0, n-1).Draw(w.T, "message")
			c := w.network[at]
			w.network = slices.Delete(w.network, at, at+1)
			fault := 0
			if faults < 4 {
				fault = rapid.IntRange(0, 9).Draw(w.T, "fault")
			}
			if fault > 0 && fault < 4 {
				faults++
			}
			if fault == 1 && w.ledger.resend { // it is lost
				continue
			}
			w.arrive(c)
			if w.done == nil && len(w.router.workers[partsWorker].ops) == 0 { // a move would begin again
				w.fail(fault)
			}
		}
	}
}

// fail kills the router, or ends it in order.
func (w *partsWorld) fail(fault int) {
	switch fault {
	case 2:
		w.begin()
	case 3:
		left := w.router.Unfinished(partsWorker)
		w.router = New(w.table)
		w.router.AddWorker(partsWorker, w.ledger)
		if !w.ledger.resend {
			if err := w.router.Resume(partsWorker, left); err != nil {
				w.Fatal(err)
			}
		}
		w.router.Open(w.table)
		w.collect()
	}
}

// repeat has all nodes retransmit unacknowledged messages.
func (w *partsWorld) repeat() {
	w.router.Repeat()
	w.collect()
	for _, server := range slices.Sorted(maps.Keys(w.asked)) {
		if !w.acked[server] {
			w.send(server)
		}
	}
	for _, signature := range slices.Sorted(maps.Keys(w.unacked)) {
		w.network = append(w.network, w.unacked[signature])
	}
}

func (w *partsWorld) arrive(c crossing) {
	if c.toRoute {
		w.routerTakes(c)
		return
	}
	m := w.decode(c.frames)
	if m.Meta.Control.Cmd == pslite.Ack {
		delete(w.unacked, m.Meta.Control.MsgSig)
		return
	}
	back := crossing{server: c.server, toRoute: true}
	if w.ledger.resend {
		signature := pslite.Signature(&m.Meta, partsWorker, pslite.ServerID(int(c.server)))
		w.network = append(w.network, crossing{c.server, true, [][]byte{ack(pslite.DMLC, signature)}})
		if w.seen[signature] {
			return
		}
		w.seen[signature] = true
	}
	back.frames = w.servers[c.server].answer(m, pslite.DMLC)
	if w.ledger.resend {
		answer := w.decode(back.frames)
		w.unacked[pslite.Signature(&answer.Meta, pslite.ServerID(int(c.server)), partsWorker)] = back
	}
	w.network = append(w.network, back)
}

func (w *partsWorld) routerTakes(c crossing) {
	m := w.decode(c.frames)
	switch {
	case m.Meta.Control.Cmd == pslite.Ack:
		if w.router.ServerAck(c.server, partsWorker, m.Meta.Control.MsgSig) {
			w.workerTakes(c.server, c.frames)
		}
	case w.router.Answer(c.server, partsWorker, &m.Meta):
		w.workerTakes(c.server, c.frames)
	default:
		if err := w.router.TakeAnswer(c.server, partsWorker, m, pslite.DMLC); err != nil {
			w.Fatal(err)
		}
	}
	w.collect()
}

// move moves a key as package migrate does, while nothing else is under way.
func (w *partsWorld) move() {
	n := len(w.servers)
	key := rapid.SampledFrom(w.keys).Draw(w.T, "moved")
	from, to := w.table.Owner(key), int32(rapid.IntRange(0, n-1).Draw(w.T, "to"))
	if parts := rapid.IntRange(0, n).Draw(w.T, "parts"); parts > 1 {
		to = plan.Parted(parts)
	}
	if _, err := w.router.Mover(); err != nil || from == to {
		return
	}
	want := w.op(&Op{Server: from, Keys: []uint64{key}}).Values[0]
	if len(want) != 4*w.widths[key] {
		w.Fatalf("key %d has %d bytes at %d, want %d values", key, len(want), from, w.widths[key])
	}
	difference := want
	for {
		w.op(&Op{Server: to, Keys: []uint64{key}, Push: true, Values: [][]byte{difference}})
		have := w.op(&Op{Server: to, Keys: []uint64{key}}).Values[0]
		if bytes.Equal(have, want) {
			break
		}
		var left []float32
		for i := range len(want) / 4 {
			left = append(left, (pslite.Values{Bytes: want, Type: pslite.Float}).Float32(i)-(pslite.Values{Bytes: have, Type: pslite.Float}).Float32(i))
		}
		difference = pslite.AppendFloat32(nil, left)
	}
	w.table.Set([]plan.Range{{Keys: plan.One(key), Owner: to}})
}

func (w *partsWorld) op(op *Op) *Op {
	w.asked = nil
	w.router.Start(partsWorker, op)
	w.collect()
	w.until(func() bool { return w.done == op })
	w.done = nil
	if op.Err != nil {
		w.Fatal(op.Err)
	}
	return op
}

// checkNothingLeft has all that is under way arrive; then nothing is left of it.
func (w *partsWorld) checkNothingLeft() {
	for len(w.network) > 0 || len(w.unacked) > 0 {
		if len(w.network) == 0 {
			w.asked = nil
			w.repeat()
		}
		c := w.network[0]
		w.network = w.network[1:]
		w.arrive(c)
	}
	worker := w.router.workers[partsWorker]
	if len(worker.open) > 0 || len(worker.splits) > 0 || len(worker.ops) > 0 || len(w.ledger.open) > 0 || len(w.ledger.whole) > 0 {
		w.Fatalf("%v are under way, %v and %v are kept", w.router.UnderWay(), w.ledger.open, w.ledger.whole)
	}
}

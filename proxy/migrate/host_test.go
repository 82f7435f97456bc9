package migrate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// A host is a worker and the site beside it, with the ledger that outlives the
// site. The two take each other's messages at once.
type host struct {
	Site   *Site // nil: killed
	Ledger *memoryLedger
	Worker *modelWorker
	// Journal outlives the site too.
	Journal memoryJournal
	// Guarded: connections could not go past the site when it was killed.
	Guarded bool
	// Past is which of the worker's connections go past the site, as they do that
	// were made while it was dead, until they break: 1 those to servers, 2 those of
	// servers. Once: some have, and the ledger may have requests whose end it missed.
	Past uint8
	Once bool
	// Unsettled: they have come back, and the worker has not yet retransmitted
	// unacknowledged messages.
	Unsettled bool
}

var (
	modelKeys = [2]uint64{1, 2} // both at home with server 0
	siteNames = [2]string{"a", "b"}
)

// memoryLedger is a ledger that outlives a site.
type memoryLedger struct {
	Last    int32
	Lossy   bool
	Opened  []route.Kept
	Known   []route.ID
	Whole   []route.Message
	Divided bool // a request was split
	Forget  bool // nothing is known of what was seen: one of the faults
}

func (l *memoryLedger) Next() int32  { l.Last++; return route.FirstOwn + l.Last }
func (l *memoryLedger) Resend() bool { return l.Lossy }
func (l *memoryLedger) UseResend()   { l.Lossy = true }
func (l *memoryLedger) at(id route.ID) int {
	return slices.IndexFunc(l.Opened, func(k route.Kept) bool { return k.ID == id })
}
func (l *memoryLedger) Open(k route.Kept) {
	l.Divided = l.Divided || k.Own != 0
	l.Known = with(l.Known, k.ID, compareIDs)
	l.Opened = with(l.Opened, k, func(a, b route.Kept) int { return compareIDs(a.ID, b.ID) })
}

func compareIDs(a, b route.ID) int {
	return cmp.Or(cmp.Compare(a.Timestamp, b.Timestamp), cmp.Compare(a.Server, b.Server))
}

// with returns a copy of a set with another element. Sets are ascending, so that
// states do not differ in the order in which things have come.
func with[T any](set []T, element T, compare func(a, b T) int) []T {
	i, _ := slices.BinarySearchFunc(set, element, compare)
	return slices.Insert(slices.Clone(set), i, element)
}

func compareSent(a, b sent) int { return cmp.Compare(a.Signature, b.Signature) }

func (l *memoryLedger) Mark(id route.ID, f route.Flags) { l.Opened[l.at(id)].Flags = f }
func (l *memoryLedger) In(id route.ID, answered uint32) { l.Opened[l.at(id)].In = answered }
func (l *memoryLedger) Close(id route.ID) {
	i := l.at(id)
	l.Opened = slices.Delete(slices.Clone(l.Opened), i, i+1)
	l.drop(func(m route.Message) bool { return m.ID == id && m.Place >= 0 })
}
func (l *memoryLedger) Keep(m route.Message) { l.Whole = append(slices.Clone(l.Whole), m) }
func (l *memoryLedger) Drop(id route.ID, place int32) {
	l.drop(func(m route.Message) bool { return m.ID == id && m.Place == place })
}
func (l *memoryLedger) drop(which func(route.Message) bool) {
	l.Whole = slices.DeleteFunc(slices.Clone(l.Whole), which)
}
func (l *memoryLedger) Messages() []route.Message { return l.Whole }
func (l *memoryLedger) Seen(id route.ID) bool     { return !l.Forget && slices.Contains(l.Known, id) }
func (l *memoryLedger) Split() bool               { return l.Divided }
func (l *memoryLedger) Load() []route.Kept        { return l.Opened }

// sent is a message that is repeated until it is acknowledged.
type sent struct {
	Signature uint64
	Frames    [][]byte
}

// modelWorker pushes 1 to both keys and pulls them, in turns.
type modelWorker struct {
	ID      int32
	Step    int // requests made
	Steps   int
	Waiting bool
	Resend  bool
	Seen    []uint64
	Unacked []sent
	Last    [2]float32
	Pushed  float32
}

func workerIndex(id int32) int { return int(id-9) / 2 }

// turn is what a host does when something reaches it.
type turn struct {
	*host
	at      int // which host
	fault   fault
	lost    int // the message that is lost of those between worker and site, from 1 on; 0: none
	crossed int // how many there were
	effects []effect
	refused bool // a move cannot begin
	failure string
}

// effect is what leaves a host: one is set.
type effect struct {
	frames [][]byte // to that server
	server int
	tell   *Message // to the other site
	record *Record
	fetch  bool
}

func (t *turn) fail(format string, args ...any) {
	if t.failure == "" {
		t.failure = fmt.Sprintf(format, args...)
	}
}

// crosses reports whether a message between worker and site gets there.
func (t *turn) crosses() bool {
	t.crossed++
	return t.crossed != t.lost
}

// begin makes a site, the number of whose last batch is known.
func (t *turn) begin(number uint64) {
	r := route.New(route.NewTable(2))
	r.AddWorker(t.Worker.ID, t.Ledger)
	if t.Journal.Keeps {
		r.Keep(&t.Journal)
	}
	t.carry(r)
	t.Site = New(siteNames[t.at], r, number)
	t.Site.SetOthers(siteNames[:])
}

// carry tells a router whether all the worker's connections come by it.
func (t *turn) carry(r *route.Router) {
	if t.fault != asksPast {
		r.SetCarried(t.Past == 0 && !t.Unsettled)
	}
}

// stray has some of the worker's connections go past the site.
func (t *turn) stray(which uint8) {
	t.Past, t.Once, t.Unsettled = which, true, true
}

// comeBack has all of them come by the site again.
func (t *turn) comeBack() {
	t.Past = 0
	if t.Site != nil {
		t.carry(t.Site.Router)
	}
	t.settle()
}

// join begins a site that was killed.
func (t *turn) join(number uint64) {
	t.begin(number)
	t.Site.Join()
	if t.fault == joinsAlone {
		t.Site.Receive(siteNames[1-t.at], Message{Kind: Holding})
	}
	t.settle()
}

// settle carries out what a site has to say.
func (t *turn) settle() {
	if t.Site == nil {
		return
	}
	for out := t.Site.Out(); len(out) > 0; out = t.Site.Out() {
		for _, o := range out {
			switch {
			case o.Send != nil:
				t.effects = append(t.effects, effect{tell: o.Send})
			case o.Record != nil:
				t.effects = append(t.effects, effect{record: o.Record})
				if t.fault == flipsEarly {
					t.Site.Recorded(o.Record.Batch, nil)
				}
			case o.Fetch:
				t.effects = append(t.effects, effect{fetch: true})
			case o.Route != nil && o.Route.ToWorker:
				t.workerTakes(int(o.Route.Server), o.Route.Frames)
			case o.Route != nil:
				if o.Route.Frames == nil {
					t.fail("a request could not be dispatched")
				}
				t.effects = append(t.effects, effect{server: int(o.Route.Server), frames: o.Route.Frames})
			}
		}
	}
}

// hear takes a message of the other site.
func (t *turn) hear(m Message) {
	if t.Site == nil {
		return
	}
	from := siteNames[1-t.at]
	if t.fault == quietEarly && m.Kind == Hold {
		t.effects = append(t.effects, effect{tell: &Message{Kind: Quiet, Batch: m.Batch, Keys: m.Keys, Uses: t.Site.Router.Uses(m.Keys)}})
	}
	t.Site.Receive(from, m)
	t.settle()
}

// siteUp takes a message of the host's worker.
func (t *turn) siteUp(server int, frames [][]byte) {
	if !t.crosses() {
		return // lost; with PS_RESEND it comes again
	}
	if t.Past&1 != 0 {
		t.effects = append(t.effects, effect{server: server, frames: frames})
		return
	}
	if t.Site == nil {
		return
	}
	m := decode(frames)
	r, id := t.Site.Router, t.Worker.ID
	passes := false
	if m.Meta.Control.Cmd == pslite.Ack {
		passes = r.WorkerAck(id, int32(server), m.Meta.Control.MsgSig)
	} else {
		if t.fault == acksEarly {
			t.workerTakes(server, ackFrames(pslite.Signature(&m.Meta, id, pslite.ServerID(server))))
		}
		if passes = r.Request(id, int32(server), &m.Meta, m.Keys(), pslite.DMLC); !passes {
			if err := r.Take(id, int32(server), m, pslite.DMLC); err != nil {
				t.fail("%v", err)
			}
		}
	}
	if passes {
		t.effects = append(t.effects, effect{server: server, frames: frames})
	}
	t.settle()
}

// siteDown takes a message of a server for the host's worker.
func (t *turn) siteDown(server int, frames [][]byte) {
	if t.Past&2 != 0 {
		// What a proxy has asked is not answered past it: see past.go in package jobs.
		if m := decode(frames); !m.Meta.Data() || m.Meta.Timestamp < route.FirstOwn {
			t.workerTakes(server, frames)
		}
		return
	}
	if t.Site == nil {
		return
	}
	m := decode(frames)
	r, id := t.Site.Router, t.Worker.ID
	passes := false
	if m.Meta.Control.Cmd == pslite.Ack {
		passes = r.ServerAck(int32(server), id, m.Meta.Control.MsgSig)
	} else if passes = r.Answer(int32(server), id, &m.Meta); !passes {
		if err := r.TakeAnswer(int32(server), id, m, pslite.DMLC); err != nil {
			t.fail("%v", err)
		}
	}
	if passes {
		t.workerTakes(server, frames)
	}
	t.settle()
}

// workerTakes is a worker with PS-lite's resender.
func (t *turn) workerTakes(server int, frames [][]byte) {
	if !t.crosses() {
		return
	}
	x := t.Worker
	m := decode(frames)
	if m.Meta.Control.Cmd == pslite.Ack {
		x.Unacked = slices.DeleteFunc(slices.Clone(x.Unacked), func(u sent) bool { return u.Signature == m.Meta.Control.MsgSig })
		return
	}
	if x.Resend {
		signature := pslite.Signature(&m.Meta, pslite.ServerID(server), x.ID)
		t.siteUp(server, ackFrames(signature))
		if slices.Contains(x.Seen, signature) {
			return
		}
		x.Seen = with(x.Seen, signature, cmp.Compare)
	}
	if !x.Waiting || m.Meta.Timestamp != int32(x.Step) {
		t.fail("worker %d gets the answer to %d, it waits for %d", t.at, m.Meta.Timestamp, x.Step)
		return
	}
	x.Waiting = false
	if m.Meta.Push {
		x.Pushed++
		return
	}
	t.pulled(m)
}

// pulled looks at what a worker has pulled: nothing goes back.
func (t *turn) pulled(m *pslite.Message) {
	x := t.Worker
	if m.Keys().Len() != 2 || m.Keys().At(0) != modelKeys[0] || m.Keys().At(1) != modelKeys[1] {
		t.fail("worker %d gets the keys %v", t.at, m.Keys().AppendTo(nil))
		return
	}
	for k := range 2 {
		v := m.Values().Float32(k)
		if v < x.Last[k] || v < x.Pushed {
			t.fail("worker %d reads %v of key %d, it has seen %v and pushed %v", t.at, v, modelKeys[k], x.Last[k], x.Pushed)
		}
		x.Last[k] = v
	}
}

// request makes the worker's next request: a push, then a pull, and so on.
func (t *turn) request() {
	x := t.Worker
	x.Step++
	x.Waiting = true
	var m pslite.Meta
	m.Reset()
	m.AppID, m.CustomerID, m.Timestamp, m.Request = 0, 0, int32(x.Step), true
	m.Push, m.Pull = x.Step%2 == 1, x.Step%2 == 0
	m.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	frames := [][]byte{nil, pslite.AppendKeys(nil, modelKeys[:]), {}}
	if m.Push {
		frames[2] = pslite.AppendFloat32(nil, []float32{1, 1})
	}
	m.DataSize = int32(len(frames[1]) + len(frames[2]))
	frames[0] = m.Append(nil, pslite.DMLC)
	if x.Resend {
		x.Unacked = with(x.Unacked, sent{pslite.Signature(&m, x.ID, pslite.ServerID(0)), frames}, compareSent)
	}
	t.siteUp(0, frames)
}

// repeat lets the timers of site and worker run out.
func (t *turn) repeat() {
	if t.Site != nil {
		t.Site.Repeat()
		t.settle()
	}
	for _, u := range t.Worker.Unacked {
		t.siteUp(0, u.Frames)
	}
	if t.Unsettled && t.Past == 0 && t.Site != nil && t.Site.Router.Ready() {
		t.Unsettled = false
		t.carry(t.Site.Router)
		t.settle()
	}
}

func decode(frames [][]byte) *pslite.Message {
	var det pslite.Detector
	m := new(pslite.Message)
	if _, err := m.Decode(&det, frames); err != nil {
		panic(err)
	}
	return m
}

func ackFrames(signature uint64) [][]byte {
	var m pslite.Meta
	m.Reset()
	m.Control = pslite.Control{Cmd: pslite.Ack, MsgSig: signature}
	return [][]byte{m.Append(nil, pslite.DMLC)}
}

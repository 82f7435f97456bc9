package migrate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// The world of the exploration: two hosts with a worker, a site and a server
// each, a store, and two keys that are at home with server 0. Everything that
// happens is one of the actions of [world.actions]; the state is plain data.
type world struct {
	Sites     [2]*Site // nil: killed
	Ledgers   [2]*memoryLedger
	Workers   [2]*modelWorker
	Servers   [2]*modelServer
	Owners    [2]int32 // of the keys, as the store has it
	ToStore   [2][]Record
	Asked     [2]bool          // the store was asked where keys are
	Told      [2][]int32       // and has said so
	ToSite    [2][]siteMessage // from the other site
	Up        [2][2][][][]byte // messages to server s as from worker w
	Down      [2][2][][][]byte // from server s for worker w
	Moves     []int            // of the moves possible, those not begun
	Budget    budget
	Resend    bool
	Number    uint64
	Failure   string
	unreduced bool // all orders count, see actions
	// Digests of what changes in few actions.
	hosts, servers [2]digest
}

type budget struct{ Loss, Repeat, Crash, Expire int }

type siteMessage struct{ M Message }

var (
	modelKeys = [2]uint64{1, 2}
	names     = [2]string{"a", "b"}
)

// possible are the moves: which key, by which site, from where to where.
var possible = []struct {
	key      int
	site     int
	from, to int32
}{{1, 0, 0, 1}, {1, 1, 1, 0}, {0, 0, 0, 1}, {0, 1, 1, 0}}

// memoryLedger is a ledger that outlives a site.
type memoryLedger struct {
	Last   int32
	Lossy  bool
	Opened []route.Kept
	Known  []route.ID
}

func (l *memoryLedger) Next() int32  { l.Last++; return route.FirstOwn + l.Last }
func (l *memoryLedger) Resend() bool { return l.Lossy }
func (l *memoryLedger) UseResend()   { l.Lossy = true }
func (l *memoryLedger) at(id route.ID) int {
	return slices.IndexFunc(l.Opened, func(k route.Kept) bool { return k.ID == id })
}
func (l *memoryLedger) Open(k route.Kept) {
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
func (l *memoryLedger) Close(id route.ID) {
	i := l.at(id)
	l.Opened = slices.Delete(slices.Clone(l.Opened), i, i+1)
}
func (l *memoryLedger) Seen(id route.ID) bool { return slices.Contains(l.Known, id) }
func (l *memoryLedger) Load() []route.Kept    { return l.Opened }

// modelServer adds what is pushed.
type modelServer struct {
	Sum     [2]float32
	Seen    []uint64
	Unacked []sent
	Drop    bool // the next message is lost
}

// sent is a message that is repeated until it is acknowledged.
type sent struct {
	Signature uint64
	Frames    [][]byte
}

// modelWorker pushes 1 to both keys and pulls them, in turns.
type modelWorker struct {
	ID       int32
	Step     int // requests made
	Steps    int
	Waiting  bool
	Seen     []uint64
	Unacked  []sent
	Last     [2]float32
	Pushed   float32
	Drop     bool
	Finished bool
}

func newWorld(resend bool, steps int, moves []int, b budget) *world {
	w := &world{Moves: moves, Budget: b, Resend: resend}
	for i := range 2 {
		w.Ledgers[i] = &memoryLedger{Lossy: resend}
		w.Workers[i] = &modelWorker{ID: pslite.WorkerID(i), Steps: steps}
		w.Servers[i] = &modelServer{}
		r := route.New(route.NewTable(2))
		r.Open(route.NewTable(2))
		w.Sites[i] = w.site(i, r)
	}
	return w
}

func (w *world) site(i int, r *route.Router) *Site {
	r.AddWorker(w.Workers[i].ID, w.Ledgers[i])
	w.Number += 1000
	s := New(names[i], r, w.Number)
	s.SetOthers(names[:])
	return s
}

func (w *world) fail(format string, args ...any) {
	if w.Failure == "" {
		w.Failure = fmt.Sprintf(format, args...)
	}
}

func workerIndex(id int32) int { return int(id-9) / 2 }

// settle carries out what a site has to say.
func (w *world) settle(i int) {
	s := w.Sites[i]
	if s == nil {
		return
	}
	for out := s.Out(); len(out) > 0; out = s.Out() {
		for _, o := range out {
			switch {
			case o.Send != nil:
				w.ToSite[1-i] = append(w.ToSite[1-i], siteMessage{*o.Send})
			case o.Record != nil:
				if len(w.ToStore[i]) == 0 { // one question at a time
					w.ToStore[i] = append(w.ToStore[i], *o.Record)
				}
			case o.Fetch:
				w.Asked[i] = true
			case o.Route != nil && o.Route.ToWorker:
				w.workerTakes(workerIndex(o.Route.Worker), int(o.Route.Server), o.Route.Frames)
			case o.Route != nil:
				if o.Route.Frames == nil {
					w.fail("a request could not be dispatched")
				}
				at := workerIndex(o.Route.Worker)
				w.Up[o.Route.Server][at] = append(w.Up[o.Route.Server][at], o.Route.Frames)
			}
		}
	}
}

func table(owners []int32) *route.Table {
	var changes []plan.Range
	for i, k := range modelKeys {
		changes = append(changes, plan.Range{Keys: plan.One(k), Owner: owners[i]})
	}
	t := route.NewTable(2)
	t.Set(changes)
	return t
}

func decode(frames [][]byte) *pslite.Message {
	var det pslite.Detector
	m := new(pslite.Message)
	if _, err := m.Decode(&det, frames); err != nil {
		panic(err)
	}
	return m
}

// serverTakes is a server with PS-lite's resender and an adding handler.
func (w *world) serverTakes(s, from int, frames [][]byte) {
	srv := w.Servers[s]
	if srv.Drop {
		srv.Drop = false
		return
	}
	m := decode(frames)
	me, them := pslite.ServerID(s), w.Workers[from].ID
	if m.Meta.Control.Cmd == pslite.Ack {
		srv.Unacked = slices.DeleteFunc(slices.Clone(srv.Unacked), func(u sent) bool { return u.Signature == m.Meta.Control.MsgSig })
		return
	}
	if w.Resend {
		signature := pslite.Signature(&m.Meta, them, me)
		w.down(s, from, ackFrames(signature))
		if slices.Contains(srv.Seen, signature) {
			return
		}
		srv.Seen = with(srv.Seen, signature, cmp.Compare)
	}
	var back pslite.Meta
	back.Reset()
	back.AppID, back.CustomerID, back.Timestamp = m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp
	back.Push, back.Pull, back.Head = m.Meta.Push, m.Meta.Pull, m.Meta.Head
	answer := [][]byte{nil}
	for i := range m.Keys().Len() {
		at := slices.Index(modelKeys[:], m.Keys().At(i))
		if m.Meta.Push {
			srv.Sum[at] += m.Values().Float32(i)
		}
	}
	if m.Meta.Pull {
		var vals []float32
		for i := range m.Keys().Len() {
			vals = append(vals, srv.Sum[slices.Index(modelKeys[:], m.Keys().At(i))])
		}
		back.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		answer = append(answer, m.Data[0], pslite.AppendFloat32(nil, vals))
	}
	answer[0] = back.Append(nil, pslite.DMLC)
	if w.Resend {
		srv.Unacked = with(srv.Unacked, sent{pslite.Signature(&back, me, them), answer}, compareSent)
	}
	w.down(s, from, answer)
}

func (w *world) down(s, to int, frames [][]byte) { w.Down[s][to] = append(w.Down[s][to], frames) }

func ackFrames(signature uint64) [][]byte {
	var m pslite.Meta
	m.Reset()
	m.Control = pslite.Control{Cmd: pslite.Ack, MsgSig: signature}
	return [][]byte{m.Append(nil, pslite.DMLC)}
}

// siteUp takes a message of the host's worker.
func (w *world) siteUp(i, server int, frames [][]byte) {
	s := w.Sites[i]
	if s == nil {
		return // lost; with PS_RESEND it comes again
	}
	m := decode(frames)
	passes := false
	if m.Meta.Control.Cmd == pslite.Ack {
		passes = s.Router.WorkerAck(w.Workers[i].ID, int32(server), m.Meta.Control.MsgSig)
	} else if passes = s.Router.Request(w.Workers[i].ID, int32(server), &m.Meta, m.Keys()); !passes {
		if err := s.Router.Take(w.Workers[i].ID, int32(server), m, pslite.DMLC); err != nil {
			w.fail("%v", err)
		}
	}
	if passes {
		w.Up[server][i] = append(w.Up[server][i], frames)
	}
	w.settle(i)
}

// siteDown takes a message of a server for the host's worker.
func (w *world) siteDown(i, server int, frames [][]byte) {
	s := w.Sites[i]
	if s == nil {
		return
	}
	m := decode(frames)
	passes := false
	if m.Meta.Control.Cmd == pslite.Ack {
		passes = s.Router.ServerAck(int32(server), w.Workers[i].ID, m.Meta.Control.MsgSig)
	} else if passes = s.Router.Answer(int32(server), w.Workers[i].ID, &m.Meta); !passes {
		if err := s.Router.TakeAnswer(int32(server), w.Workers[i].ID, m, pslite.DMLC); err != nil {
			w.fail("%v", err)
		}
	}
	if passes {
		w.workerTakes(i, server, frames)
	}
	w.settle(i)
}

// workerTakes is a worker with PS-lite's resender.
func (w *world) workerTakes(i, server int, frames [][]byte) {
	x := w.Workers[i]
	if x.Drop {
		x.Drop = false
		return
	}
	m := decode(frames)
	if m.Meta.Control.Cmd == pslite.Ack {
		x.Unacked = slices.DeleteFunc(slices.Clone(x.Unacked), func(u sent) bool { return u.Signature == m.Meta.Control.MsgSig })
		return
	}
	if w.Resend {
		signature := pslite.Signature(&m.Meta, pslite.ServerID(server), x.ID)
		w.siteUp(i, server, ackFrames(signature))
		if slices.Contains(x.Seen, signature) {
			return
		}
		x.Seen = with(x.Seen, signature, cmp.Compare)
	}
	if !x.Waiting || m.Meta.Timestamp != int32(x.Step) {
		w.fail("worker %d gets the answer to %d, it waits for %d", i, m.Meta.Timestamp, x.Step)
		return
	}
	x.Waiting = false
	if m.Meta.Push {
		x.Pushed++
		return
	}
	if m.Keys().Len() != 2 || m.Keys().At(0) != modelKeys[0] || m.Keys().At(1) != modelKeys[1] {
		w.fail("worker %d gets the keys %v", i, m.Keys().AppendTo(nil))
		return
	}
	for k := range 2 {
		v := m.Values().Float32(k)
		if v < x.Last[k] || v < x.Pushed {
			w.fail("worker %d reads %v of key %d, it has seen %v and pushed %v", i, v, modelKeys[k], x.Last[k], x.Pushed)
		}
		x.Last[k] = v
	}
}

// request makes the worker's next request: a push, then a pull, and so on.
func (w *world) request(i int) {
	x := w.Workers[i]
	x.Step++
	x.Waiting = true
	var m pslite.Meta
	m.Reset()
	m.AppID, m.CustomerID, m.Timestamp, m.Request = 0, 0, int32(x.Step), true
	m.Push, m.Pull = x.Step%2 == 1, x.Step%2 == 0
	m.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	frames := [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, modelKeys[:]), {}}
	if m.Push {
		frames[2] = pslite.AppendFloat32(nil, []float32{1, 1})
	}
	if w.Resend {
		x.Unacked = with(x.Unacked, sent{pslite.Signature(&m, x.ID, pslite.ServerID(0)), frames}, compareSent)
	}
	w.siteUp(i, 0, frames)
}

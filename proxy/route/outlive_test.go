package route

import (
	"maps"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// lasting is a ledger that outlives its router, of a job that repeats nothing.
type lasting struct {
	forgetful
	open  map[ID]Kept
	whole []Message
}

func (l *lasting) Open(k Kept) { l.open[k.ID] = k }
func (l *lasting) In(id ID, answered uint32) {
	k := l.open[id]
	k.In = answered
	l.open[id] = k
}
func (l *lasting) Close(id ID) {
	delete(l.open, id)
	l.whole = slices.DeleteFunc(l.whole, func(m Message) bool { return m.ID == id && m.Place >= 0 })
}
func (l *lasting) Keep(m Message) { l.whole = append(l.whole, m) }
func (l *lasting) Drop(id ID, place int32) {
	l.whole = slices.DeleteFunc(l.whole, func(m Message) bool { return m.ID == id && m.Place == place })
}
func (l *lasting) Messages() []Message { return slices.Clone(l.whole) }
func (l *lasting) Load() (all []Kept) {
	for _, k := range l.open {
		all = append(all, k)
	}
	return all
}

// outliving is a router of worker 9 in a job of two servers, on a ledger that may
// be another's; key 2 is displaced.
func outliving(l *lasting) *Router {
	table := NewTable(2)
	table.Set([]plan.Range{{Keys: plan.One(2), Owner: 1}})
	r := New(table)
	r.Open(table)
	r.AddWorker(9, l)
	return r
}

// askTwo has the worker push, or pull, keys 1 and 2, and returns the parts by server.
func askTwo(t *testing.T, r *Router, push bool) map[int32]*pslite.Message {
	t.Helper()
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push, m.Meta.Pull = true, push, !push
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp = 0, 0, 7
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{1, 2}), nil}
	if push {
		m.Data[1] = pslite.AppendFloat32(nil, []float32{10, 20})
	}
	if r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC) {
		t.Fatal("the request passes")
	}
	require.NoError(t, r.Take(9, 0, &m, pslite.DMLC))
	parts := map[int32]*pslite.Message{}
	for _, o := range r.Out() {
		part, err := message(o.Frames, pslite.DMLC)
		if err != nil || o.ToWorker {
			t.Fatal(o, err)
		}
		parts[o.Server] = &part
	}
	if len(parts) != 2 {
		t.Fatalf("%d parts", len(parts))
	}
	return parts
}

// A worker that was started again asks under the same names: what was kept of the
// one before it is in nobody's way.
func TestAWorkerThatBeganAgain(t *testing.T) {
	l := &lasting{open: map[ID]Kept{}}
	askTwo(t, outliving(l), true)
	r := outliving(l)
	askTwo(t, r, true)
	if len(r.UnderWay()) != 1 || len(l.open) != 1 || len(r.underWay) != 1 {
		t.Errorf("under way: %v %v, kept: %v", r.UnderWay(), r.underWay, l.open)
	}
}

// Requests wait for a move when their router is killed, in a job that repeats
// nothing. The next one sends them, each once and in their order, where their keys
// are then.
func TestWhatWaitsOutlivesTheRouter(t *testing.T) {
	for _, owner := range []int32{Unchanged, 1} {
		l := &lasting{open: map[ID]Kept{}}
		moving := Batch{Mover: "10.0.0.2", Number: 1}
		r := outliving(l)
		r.Hold(moving, []plan.Keys{plan.One(1)})
		for timestamp := int32(1); timestamp <= 3; timestamp++ {
			m := push(timestamp, 1)
			if r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC) {
				t.Fatalf("request %d does not wait", timestamp)
			}
			require.NoError(t, r.Take(9, 0, m, pslite.DMLC))
		}
		for range 2 { // it is killed, and so is the one after it
			r = New(NewTable(2))
			r.AddWorker(9, l)
			r.Hold(moving, []plan.Keys{plan.One(1)})
			r.Open(r.Table())
			if n, _ := r.Waiting(); n != 3 || len(sentTo(t, r, 0)) > 0 {
				t.Fatalf("%d requests wait", n)
			}
		}
		r.Release(moving, owner)
		if got := sentTo(t, r, max(0, owner)); !slices.Equal(got, []float32{1, 2, 3}) {
			t.Errorf("moved to %d: server %d is sent %v", owner, max(0, owner), got)
		}
		after := New(NewTable(2))
		after.AddWorker(9, l)
		after.Open(after.Table())
		if out := after.Out(); len(out) > 0 || len(l.whole) > 0 {
			t.Errorf("moved to %d: a router after that sends %+v, kept are %+v", owner, out, l.whole)
		}
	}
}

// A router is killed between noting that a request was split and forgetting that
// it waited: nothing of it has left the process, and the next router sends it.
func TestWhatWasAboutToGoGoesOnce(t *testing.T) {
	l := &lasting{open: map[ID]Kept{}}
	m := push(1, 2)
	id := ID{Timestamp: 1}
	l.Open(Kept{ID: id, Own: FirstOwn + 100, Owners: []int32{1}})
	l.Keep(Message{ID: id, Place: Waits, Dialect: pslite.DMLC, Frames: frames(m, &m.Meta, pslite.DMLC, m.Data)})
	r := outliving(l)
	w := r.workers[9]
	if got := sentTo(t, r, 1); !slices.Equal(got, []float32{1}) || len(r.UnderWay()) != 1 {
		t.Errorf("the key's server is sent %v, under way are %v", got, r.UnderWay())
	}
	if w.splits[FirstOwn+100] != nil || len(w.splits) != 1 || !maps.Equal(r.underWay, map[uint32]int{r.generation: 1}) || len(l.open) != 1 || len(l.whole) > 0 {
		t.Errorf("splits %v, under way in their generations %v, kept %v %v: want one of each, of what was sent now, and no message", w.splits, r.underWay, l.open, l.whole)
	}
}

// A worker that was started again asks under the name of a request that still
// waits: its own is the one that goes.
func TestAWorkerThatBeganAgainWhileItsRequestWaited(t *testing.T) {
	l := &lasting{open: map[ID]Kept{}}
	old := push(1, 1)
	l.Keep(Message{ID: ID{Timestamp: 1}, Place: Waits, Dialect: pslite.DMLC, Frames: frames(old, &old.Meta, pslite.DMLC, old.Data)})
	r := New(NewTable(2))
	r.AddWorker(9, l)
	again := push(1, 1)
	again.Data[1] = pslite.AppendFloat32(nil, []float32{7})
	if r.Request(9, 0, &again.Meta, again.Keys(), pslite.DMLC) {
		t.Fatal("a request passes before the table is known")
	}
	require.NoError(t, r.Take(9, 0, again, pslite.DMLC))
	r.Open(r.Table())
	if got := sentTo(t, r, 0); !slices.Equal(got, []float32{7}) || len(l.whole) > 0 {
		t.Errorf("the server is sent %v, kept are %v", got, l.whole)
	}
}

// push is a push of a key, of its timestamp, by worker 9 to server 0.
func push(timestamp int32, key uint64) *pslite.Message {
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push = true, true
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp = 0, 0, timestamp
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{key}), pslite.AppendFloat32(nil, []float32{float32(timestamp)})}
	return &m
}

// sentTo are the values that a server is sent, of one key each.
func sentTo(t *testing.T, r *Router, server int32) (all []float32) {
	t.Helper()
	for _, o := range r.Out() {
		if o.Quiet != nil {
			continue
		}
		m := require.Value(message(o.Frames, pslite.DMLC))(t)
		if o.Server == server && !o.ToWorker {
			all = append(all, m.Values().Float32(0))
		}
	}
	return all
}

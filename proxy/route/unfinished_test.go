package route

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// A router takes up what another has left, as it is kept on disk: a request of
// which one part is answered, one that passed, and one that waits for a move. The
// worker gets what one server with all keys answers.
func TestUnfinished(t *testing.T) {
	const d = pslite.DMLC
	keys, worker := []uint64{1, 2, 3}, pslite.WorkerID(0)
	begin := func() *Router {
		table := NewTable(2)
		table.Set([]plan.Range{{Keys: plan.One(2), Owner: 1}})
		r := New(table)
		r.AddWorker(worker, &forgetful{})
		return r
	}
	servers, whole := []adding{{}, {}}, adding{}
	answer := func(r *Router, o Out) {
		back := decoded(t, servers[o.Server].answer(decoded(t, o.Frames, d), d), d)
		if r.Answer(o.Server, worker, &back.Meta) {
			return
		}
		if err := r.TakeAnswer(o.Server, worker, back, d); err != nil {
			t.Fatal(err)
		}
	}
	first := begin()
	first.Open(first.Table())
	pull := decoded(t, ask(d, 0, true, true, false, keys), d)
	if err := first.Take(worker, 0, pull, d); err != nil {
		t.Fatal(err)
	}
	parts := first.Out()
	if len(parts) != 2 {
		t.Fatalf("%d parts", len(parts))
	}
	answer(first, parts[1])
	plain := decoded(t, ask(d, 1, true, false, false, []uint64{1, 3}), d)
	if !first.Request(worker, 0, &plain.Meta, plain.Keys(), d) {
		t.Fatal("a request with all keys at home does not pass")
	}
	moving := Batch{Mover: "10.0.0.2", Number: 1}
	first.Hold(moving, []plan.Keys{plan.One(5)})
	held := decoded(t, ask(d, 2, true, true, false, []uint64{2, 5}), d)
	if err := first.Take(worker, 0, held, d); err != nil {
		t.Fatal(err)
	}

	kept, err := json.Marshal(first.Unfinished(worker))
	if err != nil {
		t.Fatal(err)
	}
	var left []Unfinished
	if err := json.Unmarshal(kept, &left); err != nil || len(left) != 3 {
		t.Fatalf("%s: %v", kept, err)
	}
	next := begin()
	if err := next.Resume(worker, left); err != nil {
		t.Fatal(err)
	}
	next.Hold(moving, []plan.Keys{plan.One(5)})
	next.Open(next.Table())
	if out := next.Out(); len(out) != 0 {
		t.Fatalf("before anything is answered there is %+v to do", out)
	}
	delivered := func(what string, m *pslite.Message) {
		t.Helper()
		want := whole.answer(m, d)
		out := next.Out()
		if len(out) == 0 || !out[0].ToWorker || out[0].Server != 0 || !slices.EqualFunc(out[0].Frames, want, bytes.Equal) {
			t.Fatalf("%s is answered by %+v, want %x", what, out, want)
		}
	}
	answer(next, parts[0])
	delivered("the request of which a part was answered", pull)
	answer(next, Out{Server: 0, Frames: ask(d, 1, true, false, false, []uint64{1, 3})})
	if out := next.Out(); len(out) != 1 || out[0].Quiet == nil {
		t.Fatalf("when all before the move is answered there is %+v to do", out)
	}
	whole.answer(plain, d)
	next.Release(moving, 1)
	for _, o := range next.Out() {
		answer(next, o)
	}
	delivered("the request that waited", held)
	if u := next.Unfinished(worker); len(u) != 0 {
		t.Errorf("%+v is left", u)
	}
}

// One server has answered a push, the router was killed, and the next one ends in order:
// the answer is one of those that have come to the one after that, and the other server's
// is what the worker gets.
func TestWhatCameToAKilledRouterIsLeft(t *testing.T) {
	l := &lasting{open: map[ID]Kept{}}
	r := outliving(l)
	parts := askTwo(t, r, true)
	take := func(server int32) {
		t.Helper()
		back, err := message(adding{}.answer(parts[server], pslite.DMLC), pslite.DMLC)
		if err == nil {
			err = r.TakeAnswer(server, 9, &back, pslite.DMLC)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	take(0)
	r = outliving(l)
	left := r.Unfinished(9)
	r = outliving(l)
	if err := r.Resume(9, left); err != nil {
		t.Fatal(err)
	}
	take(1)
	out := r.Out()
	if len(out) != 1 || !out[0].ToWorker {
		t.Fatalf("the worker gets %+v", out)
	}
	if whole, err := message(out[0].Frames, pslite.DMLC); err != nil || whole.Meta.Timestamp != 7 || !whole.Meta.Push {
		t.Errorf("the answer is %+v, %v", whole.Meta, err)
	}
}

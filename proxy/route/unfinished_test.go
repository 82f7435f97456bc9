package route

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// A router takes up what another has left, as it is kept on disk: a request of
// which one part is answered, one that passed, and one that waits for a move. The
// worker gets what one server with all keys answers.
func TestUnfinished(t *testing.T) {
	const d = pslite.DMLC
	keys, worker := []uint64{3, 2, 1}, pslite.WorkerID(0) // not every program has them ascend
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
		require.NoError(t, r.TakeAnswer(o.Server, worker, back, d))
	}
	first := begin()
	first.Open(first.Table())
	pull := decoded(t, ask(d, 0, true, true, false, keys), d)
	require.NoError(t, first.Take(worker, 0, pull, d))
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
	held := decoded(t, ask(d, 2, true, true, false, []uint64{6, 2, 5, 1}), d)
	require.NoError(t, first.Take(worker, 0, held, d))

	kept := require.Value(json.Marshal(first.Unfinished(worker)))(t)
	var left []Unfinished
	if err := json.Unmarshal(kept, &left); err != nil || len(left) != 3 {
		t.Fatalf("%s: %v", kept, err)
	}
	next := begin()
	require.NoError(t, next.Resume(worker, left))
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

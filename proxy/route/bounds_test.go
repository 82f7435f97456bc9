package route

import (
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// boundedRouter is an open router of two servers, with key 2 displaced, and worker 9.
func boundedRouter() *Router {
	table := NewTable(2)
	table.Set([]plan.Range{{Keys: plan.One(2), Owner: 1}})
	r := New(table)
	r.AddWorker(9, &forgetful{})
	r.Open(table)
	return r
}

// pushOfKey is a push without values of a key to server 0.
func pushOfKey(timestamp int32, key uint64) *pslite.Message {
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push, m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp = true, true, 0, 0, timestamp
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{key}), make([]byte, 4)}
	return &m
}

// Where a server does not answer, requests pass beyond the number that is noted, and what is
// remembered of them does not grow. No hold is quiet from then on, also not one of the next proxy,
// until the worker is another process.
func TestUnnotedRequestsKeepKeysFromMoving(t *testing.T) {
	r := boundedRouter()
	const n = maxOpen + 100
	ask := func(timestamp int32) {
		t.Helper()
		m := pushOfKey(timestamp, 1)
		if !r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC) {
			t.Fatalf("request %d does not pass", timestamp)
		}
	}
	for i := range int32(n) {
		ask(i)
	}
	w := r.workers[9]
	if c := r.Counts(); c.Plain != n || c.Unnoted != n-maxOpen || len(w.open) != maxOpen+1 {
		t.Errorf("%d requests passed, %d unnoted, %d are remembered", c.Plain, c.Unnoted, len(w.open))
	}
	for i := range int32(n) { // all answers, also of those that were not noted
		back := pushOfKey(i, 1).Meta
		back.Request = false
		if !r.Answer(0, 9, &back) {
			t.Fatalf("answer %d does not pass", i)
		}
	}
	if len(w.open) != 1 || len(r.UnderWay()) != 1 {
		t.Errorf("when all are answered, %d are remembered: %v", len(w.open), r.UnderWay())
	}
	next := boundedRouter()
	require.NoError(t, next.Resume(9, r.Unfinished(9)))
	for what, r := range map[string]*Router{"this proxy": r, "the next proxy": next} {
		b := Batch{Mover: "10.0.0.2", Number: 1}
		r.Hold(b, []plan.Keys{plan.One(1)})
		if r.Quiet(b) {
			t.Errorf("%s: keys are quiet although requests may be in flight", what)
		}
		if r.AbandonWorker(9) != 1 || !r.Quiet(b) {
			t.Errorf("%s: keys are not quiet when the worker's process is gone", what)
		}
	}
}

// Requests of a job with PS_RESEND that are split beyond the bound are dropped without an
// acknowledgement, and are new ones when they come again.
func TestSplitRequestsBeyondTheBoundComeAgain(t *testing.T) {
	r := boundedRouter()
	r.UseResend()
	take := func(timestamp int32) int {
		t.Helper()
		m := pushOfKey(timestamp, 2)
		if r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC) {
			t.Fatal("a request for a displaced key passes")
		}
		require.NoError(t, r.Take(9, 0, m, pslite.DMLC))
		return len(r.Out())
	}
	for i := range int32(MaxSplits) {
		if n := take(i); n != 1 {
			t.Fatalf("request %d becomes %d messages", i, n)
		}
	}
	if n := take(MaxSplits); n != 0 || r.Counts().Dropped != 1 || r.InFlight(9) != MaxSplits {
		t.Errorf("one more becomes %d messages, %d are dropped, %d in flight", n, r.Counts().Dropped, r.InFlight(9))
	}
	w := r.workers[9]
	id := request{timestamp: 0}
	own := w.open[id].split.own
	r.ackedPart(w, 1, own)
	r.mark(w, id, w.open[id], Answered)
	r.Out()
	if n := take(MaxSplits); n != 1 {
		t.Errorf("once another is answered, it becomes %d messages", n)
	}
}

// No two batches have one key.
func TestBatchesShareNoKey(t *testing.T) {
	r := boundedRouter()
	held := func(number uint64, first, last uint64) bool {
		return r.Hold(Batch{Mover: "10.0.0.2", Number: number}, []plan.Keys{{First: first, Last: last}})
	}
	if !held(1, 4, 6) || held(2, 6, 9) || held(3, 1, 4) || !held(4, 7, 9) || !held(5, 1, 3) {
		t.Errorf("held are %v", r.Holds())
	}
}

package route

import (
	"errors"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

var aMove = Batch{Mover: "10.0.0.2", Number: 1}

// answeredRouter is a router whose worker 9 has had an answer, so that its job is known not to use
// PS_RESEND; key 2 is displaced.
func answeredRouter(t *testing.T, l *lasting) *Router {
	t.Helper()
	r := outliving(l)
	passes(t, r, push(0, 1))
	var back pslite.Meta
	back.Reset()
	back.AppID, back.CustomerID, back.Timestamp, back.Push = 0, 0, 0, true
	if !r.Answer(0, 9, &back) || len(r.UnderWay()) > 0 {
		t.Fatalf("under way after the answer: %v", r.UnderWay())
	}
	return r
}

// passes has worker 9 make a request of server 0 that passes.
func passes(t *testing.T, r *Router, m *pslite.Message) {
	t.Helper()
	if !r.Request(9, 0, &m.Meta, m.Keys(), pslite.DMLC) {
		t.Fatalf("request %d does not pass", m.Meta.Timestamp)
	}
}

// isQuiet reports whether the router says that the move is.
func isQuiet(r *Router) (quiet bool) {
	for _, o := range r.Out() {
		quiet = quiet || o.Quiet != nil && *o.Quiet == aMove
	}
	return quiet
}

// A worker ends its connections with requests in flight. Each connection's end closes those that
// wait for its server, and only those made before; a move of their keys then begins.
func TestRequestsEndWithTheirConnection(t *testing.T) {
	l := &lasting{open: map[ID]Kept{}}
	r := answeredRouter(t, l)
	passes(t, r, push(1, 1))
	parts := askTwo(t, r, true)
	if r.Hold(aMove, []plan.Keys{plan.One(1)}); isQuiet(r) {
		t.Fatal("it is quiet with requests in flight")
	}
	if n := r.AbandonConnection(9, 1, r.NextGeneration()); n != 1 || isQuiet(r) {
		t.Errorf("the end of a connection closes %d requests, want the split one", n)
	}
	last := r.NextGeneration()
	passes(t, r, push(8, 3))
	if n := r.AbandonConnection(9, 0, last); n != 1 || !isQuiet(r) || len(r.UnderWay()) != 1 || len(l.open) > 0 {
		t.Errorf("the end of a connection closes %d requests; in flight: %v, kept: %v", n, r.UnderWay(), l.open)
	}
	back, err := message(adding{}.answer(parts[1], pslite.DMLC), pslite.DMLC)
	if err == nil {
		err = r.TakeAnswer(1, 9, &back, pslite.DMLC)
	}
	if c := r.Counts(); err != nil || len(r.Out()) > 0 || c.Ended != 2 || c.Restarted != 0 {
		t.Errorf("a late answer: %v; %+v", err, c)
	}
}

// While it is not known that a job repeats nothing its requests stay open, and so do those of one
// that repeats them.
func TestRequestsThatMayComeAgainAreNotAbandoned(t *testing.T) {
	for _, resend := range []bool{false, true} {
		r := outliving(&lasting{open: map[ID]Kept{}})
		passes(t, r, push(1, 1))
		if resend {
			r.UseResend()
			if n := r.AbandonWorker(9); n > 0 {
				t.Errorf("%d requests are abandoned with their worker", n)
			}
		}
		if n := r.AbandonConnection(9, 0, r.NextGeneration()); n > 0 || len(r.UnderWay()) != 1 {
			t.Errorf("resend %v: %d requests are abandoned", resend, n)
		}
	}
}

// Nothing is left of what a worker had asked, or was about to, when another takes its place.
func TestRequestsEndWithTheirWorker(t *testing.T) {
	l := &lasting{open: map[ID]Kept{}}
	r := answeredRouter(t, l)
	passes(t, r, push(1, 1))
	askTwo(t, r, false)
	r.Hold(aMove, []plan.Keys{plan.One(1)})
	held := push(9, 1)
	require.NoError(t, r.Take(9, 0, held, pslite.DMLC))
	if n := r.AbandonWorker(9); n != 3 || !isQuiet(r) || r.Counts().Restarted != 3 {
		t.Errorf("%d requests are abandoned, want 3; in flight: %v", n, r.UnderWay())
	}
	r.Release(aMove, 1)
	if out := r.Out(); len(out) > 0 || len(l.open)+len(l.whole) > 0 || len(r.workers[9].splits) > 0 {
		t.Errorf("of a worker that is gone %+v is sent; kept: %v %v", out, l.open, l.whole)
	}
}

// A worker was restarted, and nobody has said so: its first request shows it, and the answers to
// the old one are not taken for those to the new one.
func TestAWorkerThatBeganAgainUnderTheSameRouter(t *testing.T) {
	r := answeredRouter(t, &lasting{open: map[ID]Kept{}})
	servers := map[int32]adding{0: {1: {1}}, 1: {2: {2}}}
	old := askTwo(t, r, false)
	take := func(server int32, part *pslite.Message) {
		t.Helper()
		back, err := message(servers[server].answer(part, pslite.DMLC), pslite.DMLC)
		if err == nil {
			err = r.TakeAnswer(server, 9, &back, pslite.DMLC)
		}
		require.NoError(t, err)
	}
	take(0, old[0])
	servers[0][1][0] = 10
	parts := askTwo(t, r, false)
	if len(r.UnderWay()) != 1 || len(r.underWay) != 1 || r.Counts().Restarted != 1 {
		t.Errorf("in flight: %v %v", r.UnderWay(), r.underWay)
	}
	take(1, old[1])
	if out := r.Out(); len(out) > 0 {
		t.Errorf("the old answer makes %+v", out)
	}
	take(0, parts[0])
	take(1, parts[1])
	out := r.Out()
	if len(out) != 1 {
		t.Fatalf("the worker gets %d answers", len(out))
	}
	if whole, err := message(out[0].Frames, pslite.DMLC); err != nil || whole.Values().Float32(0) != 10 || len(r.underWay) > 0 {
		t.Errorf("the worker gets %v, %v; in flight %v", whole.Data, err, r.underWay)
	}
}

// Two customers use one timestamp when the job turns out to use PS_RESEND. Requests cannot be told
// apart from then on, and none stays open after the answers.
func TestRequestsOfOneNameAreClosed(t *testing.T) {
	table := NewTable(2)
	r := New(table)
	r.Open(table)
	r.AddWorker(9, &remembering{seen: map[ID]bool{}})
	for customer := range int32(2) {
		passes(t, r, pushOf(customer, 7, 1))
	}
	r.Hold(aMove, []plan.Keys{plan.One(1)})
	for customer := range int32(2) {
		m := pushOf(customer, 7, 1)
		r.ServerAck(0, 9, pslite.Signature(&m.Meta, 9, pslite.ServerID(0)))
		m.Meta.Request = false
		r.Answer(0, 9, &m.Meta)
	}
	if !isQuiet(r) || len(r.underWay) > 0 {
		t.Errorf("in flight: %v %v", r.UnderWay(), r.underWay)
	}
}

// Keys are held between the two files in which a router finds a request that another has left: it
// counts once, and ends with its answer.
func TestWhatIsLeftTwiceCountsOnceBesideAHold(t *testing.T) {
	l := &lasting{open: map[ID]Kept{}}
	before := outliving(l)
	parts := askTwo(t, before, true)
	left := before.Unfinished(9)
	r := outliving(l)
	r.Hold(aMove, []plan.Keys{plan.One(1)})
	require.NoError(t, r.Resume(9, left))
	for server, part := range parts {
		back, err := message(adding{}.answer(part, pslite.DMLC), pslite.DMLC)
		if err == nil {
			err = r.TakeAnswer(server, 9, &back, pslite.DMLC)
		}
		require.NoError(t, err)
	}
	if !isQuiet(r) || len(r.underWay) > 0 {
		t.Errorf("in flight: %v", r.underWay)
	}
}

// A process that uses ever new app ids takes no memory by that.
func TestAppsAreBounded(t *testing.T) {
	r := outliving(&lasting{open: map[ID]Kept{}})
	for app := range int32(100) {
		m := push(app, 1)
		m.Meta.AppID = app
		passes(t, r, m)
	}
	if n := len(r.uses); n > mostUses {
		t.Errorf("%d uses are remembered", n)
	}
	if _, err := r.Mover(); !errors.Is(err, ErrApps) {
		t.Errorf("keys of several apps could move: %v", err)
	}
}

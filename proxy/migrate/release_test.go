package migrate

import (
	"errors"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A move is given up, and what its mover says of that is lost. Where a request is
// under way that will never end, as one that was answered past the proxy, the keys
// are held no longer than until the timers have run out: the next request for them
// goes its way.
func TestALostReleaseWhileSomethingIsUnderWay(t *testing.T) {
	site := func(name string) *Site {
		r := route.New(route.NewTable(2))
		r.Open(r.Table())
		s := New(name, r, 0)
		s.SetOthers(siteNames[:])
		return s
	}
	mover, other := site(siteNames[0]), site(siteNames[1])
	mover.Router.AddWorker(9, &memoryLedger{})
	other.Router.AddWorker(11, &memoryLedger{})
	push := func(s *Site, worker, timestamp int32) (passes bool) {
		var m pslite.Message
		m.Meta.Reset()
		m.Meta.Request, m.Meta.Push, m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp = true, true, 0, 0, timestamp
		m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		m.Data = [][]byte{pslite.AppendKeys(nil, modelKeys[:]), pslite.AppendFloat32(nil, []float32{1, 1})}
		if passes = s.Router.Request(worker, 0, &m.Meta, m.Keys(), pslite.DMLC); !passes {
			require.NoError(t, s.Router.Take(worker, 0, &m, pslite.DMLC))
		}
		return passes
	}
	said := func(s *Site) (all []Message) {
		for _, o := range s.Out() {
			if o.Send != nil {
				all = append(all, *o.Send)
			}
		}
		return all
	}
	if !push(mover, 9, 1) || !push(other, 11, 1) {
		t.Fatal("a request does not pass")
	}
	require.NoError(t, mover.Begin(Move{From: 0, To: 1, Keys: []uint64{modelKeys[0]}, Handler: Adds}))
	for _, m := range said(mover) {
		other.Receive(mover.Name(), m)
	}
	if push(other, 11, 2) || len(other.Router.Holds()) != 1 {
		t.Fatal("the key is not held")
	}
	mover.Repeat()
	other.Repeat()
	for _, m := range said(other) {
		mover.Receive(other.Name(), m)
	}
	if all := said(mover); slices.ContainsFunc(all, func(m Message) bool { return m.Kind == Release }) {
		t.Errorf("it is over while it goes on: %v", all)
	}
	if !mover.Expire(route.Batch{Mover: mover.Name(), Number: mover.Last()}) {
		t.Fatal("the move does not expire")
	}
	said(mover) // is lost
	other.Repeat()
	for _, m := range said(other) {
		mover.Receive(other.Name(), m)
	}
	for _, m := range said(mover) {
		other.Receive(mover.Name(), m)
	}
	if waits, _ := other.Router.Waiting(); waits > 0 || len(other.Router.Holds()) > 0 {
		t.Errorf("%d requests wait, for %v", waits, other.Router.Holds())
	}
	if owner := other.Router.Table().Owner(modelKeys[0]); owner != 0 {
		t.Errorf("the key is with server %d", owner)
	}
}

// A move is given up at once where a site does not see all requests of its workers.
func TestNoMoveWhereASiteIsBlind(t *testing.T) {
	mover, other := New(siteNames[0], route.New(route.NewTable(2)), 0), New(siteNames[1], route.New(route.NewTable(2)), 0)
	for _, s := range []*Site{mover, other} {
		s.Router.Open(s.Router.Table())
		s.SetOthers(siteNames[:])
	}
	mover.Router.AddWorker(9, &memoryLedger{})
	m := pslite.Meta{Push: true, Request: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	mover.Router.Request(9, 0, &m, pslite.AppendKeys(nil, []uint64{99}), pslite.DMLC)
	mover.Router.Answer(0, 9, &m)
	other.Router.SetCarried(false)
	require.NoError(t, mover.Begin(Move{From: 0, To: 1, Keys: []uint64{1}, Handler: Adds}))
	var result *Result
	deliver := func(from, to *Site) {
		for _, o := range from.Out() {
			if o.Send != nil {
				to.Receive(from.Name(), *o.Send)
			}
			if o.Result != nil {
				result = o.Result
			}
		}
	}
	deliver(mover, other)
	other.Repeat()
	deliver(other, mover)
	deliver(mover, other)
	if result == nil || !errors.Is(result.Err, ErrPast) || len(other.Router.Holds())+len(mover.Router.Holds()) > 0 {
		t.Errorf("the move ends with %+v, %v and %v are held", result, mover.Router.Holds(), other.Router.Holds())
	}
}

// A site that begins again does not take such a question for an answer of its own.
func TestAQuestionIsNoAnswer(t *testing.T) {
	s := New(siteNames[0], route.New(route.NewTable(2)), 0)
	s.SetOthers(siteNames[:])
	s.Join()
	b := route.Batch{Mover: siteNames[0], Number: 7}
	s.Receive(siteNames[1], Message{Kind: Holding, Batch: b, Keys: []plan.Keys{plan.One(1)}})
	if len(s.Joining()) != 1 {
		t.Error("it has joined")
	}
	s.Receive(siteNames[1], Message{Kind: Holding})
	if len(s.Joining()) != 0 {
		t.Error("it has not joined")
	}
}

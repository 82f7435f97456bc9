package live

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
)

// A job comes again with fewer servers, on fewer hosts: what the others still
// report of the run before changes nothing.
func TestEndedRunElsewhere(t *testing.T) {
	f := newFleet(t, true, nil)
	old := f.report(2, 9)
	old.Jobs[0].Servers, old.Jobs[0].LastUnixNanos, old.Jobs[0].Window = 3, 7, nil
	old.Jobs[0].Nodes[0].Rank = 1
	f.planner.Take(old)
	first := f.report(0, 1)
	first.Jobs[0].LastUnixNanos = 99
	f.planner.Take(first)
	f.planner.Take(old) // whose host is not one of those that are known now
	at := int64(100)
	for range 3 {
		f.steps += 10
		for host, keys := range [][]uint64{{1, 2, 3, second(1)}, {5, 6, 7, second(1), second(2)}} {
			r := f.report(host, keys...)
			at++
			r.Jobs[0].LastUnixNanos = at
			f.planner.Take(r)
			f.planner.Take(old)
		}
		f.planner.Decide(t.Context())
	}
	p := f.shown(t)
	if p.GetTrouble() != "" || len(p.GetEpochs()) == 0 {
		t.Fatalf("nothing is planned: %v", p)
	}
	for _, h := range p.GetEpochs()[0].GetHosts() {
		if h.GetHost() == "h2" {
			t.Errorf("the plan counts with the host of the run before: %v", p)
		}
	}
}

// A job starts over with fewer servers, and nobody has named its run yet: the
// owners that are known are those of the run before, and one of them is no server.
// Nothing is planned, and the planner goes on.
func TestFewerServersThanOwners(t *testing.T) {
	f := newFleet(t, true, nil)
	f.round(t.Context(), []uint64{1, 2}, []uint64{5, 6, 7})
	if _, err := f.service.Record(t.Context(), &api.RecordRequest{Job: testJob, From: 0, To: 1, First: []uint64{5}, Last: []uint64{7}}); err != nil {
		t.Fatal(err)
	}
	f.done(t, f.shown(t).GetEpochs()[0].GetEpoch(), 3)
	for host, keys := range [][]uint64{{1}, {5, 8}} {
		r := f.report(host, keys...)
		r.Jobs[0].Servers, r.Jobs[0].LastUnixNanos = 1, 99
		if host > 0 {
			r.Jobs[0].Nodes = nil
		}
		f.planner.Take(r)
	}
	f.planner.Decide(t.Context())
	if p := f.shown(t); len(p.GetEpochs()) != 1 || p.GetTrouble() != otherServers {
		t.Errorf("%d plans, trouble %q", len(p.GetEpochs()), p.GetTrouble())
	}
}

// An agent that lags behind tells of the run before when the next has begun: those
// keys are unknown to its servers, and must not move.
func TestWindowOfTheRunBefore(t *testing.T) {
	f := newFleet(t, true, nil)
	j := newJob(testJob, DefaultOptions)
	j.follow(plan.NewRun("", time.Unix(1, 0), 11))
	j.follow(plan.NewRun(j.run, time.Unix(2, 0), 12))
	const began = 2e9
	for i, c := range []struct {
		table uint64
		first int64
		keys  int
	}{
		{11, began + 1, 0}, {12, began - 1, 1},
		// Of an agent that has not seen the table.
		{0, 0, 2}, {0, began - 1, 2}, {0, began, 3},
	} {
		r := f.report(0, uint64(i)).GetJobs()[0]
		r.NodeTable, r.Window.FirstUnixNanos = c.table, c.first
		j.addReport("h0", 0, r)
		if len(j.keys) != c.keys {
			t.Errorf("after a window of a run with table %d, first used at %d, keys %v are known, want %d", c.table, c.first, j.keys, c.keys)
		}
	}
	// What came to a planner that began after it, and was told of the next run later.
	j = newJob(testJob, DefaultOptions)
	j.addReport("h0", 0, f.report(0, 1).GetJobs()[0])
	if j.follow(plan.NewRun("", time.Unix(2, 0), 12)); len(j.keys) > 0 {
		t.Errorf("keys %v, seen before the run was named, are taken for its own", j.keys)
	}
}

// A worker that is not heard of is taken to go on as before, for a while: a key
// that it used stays, though all that is heard of now use it elsewhere.
func TestSilentWorker(t *testing.T) {
	f := newFleet(t, false, nil)
	f.round(t.Context(), []uint64{1, 5}, []uint64{5})
	if e := f.shown(t).GetEpochs(); len(e) > 0 {
		t.Fatalf("a key that both use alike moves: %v", e)
	}
	for i := range patience + 4 {
		f.steps += 10
		f.planner.Take(f.report(1, 5))
		f.planner.Decide(t.Context())
		if n := len(f.shown(t).GetEpochs()); n > 0 && i < patience || n == 0 && i == patience+3 {
			t.Errorf("%d plans after %d decisions without host 0", n, i+1)
		}
	}
}

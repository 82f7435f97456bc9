package jobs

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// Large values cannot be divided while a connection is missing. They are none of the planner's
// keys, and are tried again after a pause and not in each tick.
func TestPartsThatCannotMoveAreNotRefusedAgainAndAgain(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds, Parts: 2})
	x.jobs.plans.listed, x.used = true, true
	connect(t, x)
	for range partAfter {
		x.parting.notePush(7, 4*partFrom, pslite.WorkerID(0), time.Now())
	}
	x.down[pair{pslite.WorkerID(0), 1}].Close()
	if x.tick(); len(x.work) != 1 {
		t.Fatalf("%d groups of keys wait", len(x.work))
	}
	x.pastSince = x.pastSince.Add(-pastAfter)
	for range 5 {
		x.tick()
	}
	if len(x.work) > 0 || x.refusedKeys > 0 || x.parting.off.Reason != "" {
		t.Errorf("%d groups wait, %d keys are refused, %+v", len(x.work), x.refusedKeys, x.parting.off)
	}
	back(t, x, 1)
	x.parting.again = time.Now()
	if x.tick(); x.site.Moving() != 1 {
		t.Errorf("%d values move when all connections are there", x.site.Moving())
	}
}

// A report is sent while more keys are refused: it does not change.
func TestAReportDoesNotChange(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.locked(func() error {
		x.accept(&api.MoveBatch{Batch: 1, From: 0, To: 1, First: []uint64{7, 8, 9}})
		return nil
	})
	w := x.work[0]
	x.refuse(w, "past", "no", 1)
	report := x.reports()[0]
	x.refuse(w, "past", "no", 1)
	if n := report.GetRefused()[0].GetKeys(); n != 1 {
		t.Errorf("the report says %d keys, want 1", n)
	}
}

// A batch is canceled while its keys move. The move fails, and is not tried again.
func TestACanceledBatchIsNotTriedAgain(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.jobs.plans.listed, x.used = true, true
	connect(t, x)
	x.locked(func() error {
		x.accept(&api.MoveBatch{Batch: 1, From: 0, To: 1, First: []uint64{7}})
		return nil
	})
	if x.tick(); x.site.Moving() != 1 {
		t.Fatalf("%d moves are under way", x.site.Moving())
	}
	x.locked(func() error {
		x.cancel(1)
		x.site.Expire(route.Batch{Mover: x.site.Name(), Number: x.site.Last()})
		return nil
	})
	if len(x.work)+len(x.underWay) > 0 {
		t.Errorf("%d groups wait, %d move", len(x.work), len(x.underWay))
	}
	if r := x.reports(); len(r) != 1 || !r[0].GetDone() || r[0].GetPendingKeys() != 0 {
		t.Errorf("the planner hears %v", r)
	}
}

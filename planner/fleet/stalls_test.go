package fleet

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// Whether a job goes on is what all hosts say together: who waits at a barrier on
// one host waits for the worker that another host knows to be stopped.
func TestGoesOn(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func(seconds int64) int64 { return now.Add(-time.Duration(seconds) * time.Second).UnixNano() }
	waits := &api.JobReport{State: "stalled", SinceUnixNanos: at(12), What: "stalled for 12 s: worker0 waits at a barrier",
		Stalls: []*api.Stall{{Kind: "barrier", Who: "worker0", SinceUnixNanos: at(12)}}}
	silent := &api.JobReport{State: "stalled", SinceUnixNanos: at(13), Cause: "worker1", What: "stalled for 13 s: worker1 sends no requests",
		Stalls: []*api.Stall{{Kind: "silent", Who: "worker1", SinceUnixNanos: at(13)}}}
	running, over, starting := &api.JobReport{State: "running"}, &api.JobReport{State: "over", What: "over"}, &api.JobReport{State: "starting"}
	for name, tc := range map[string]struct {
		reports      []*api.JobReport
		state, cause string
		stalls       int
	}{
		"of agents that do not say":  {[]*api.JobReport{{}}, "", "", 0},
		"all wait for one":           {[]*api.JobReport{waits, silent, starting}, page.Stalled, "worker1", 2},
		"one stands still, alone":    {[]*api.JobReport{silent, running}, page.Running, "worker1", 1},
		"over, and an idle host":     {[]*api.JobReport{over, starting}, page.Over, "", 0},
		"over on one host":           {[]*api.JobReport{over, running}, page.Running, "", 0},
		"servers alone have begun":   {[]*api.JobReport{starting, starting}, page.Starting, "", 0},
		"a host whose part is over":  {[]*api.JobReport{over, waits, silent}, page.Stalled, "worker1", 2},
		"none but who waits is seen": {[]*api.JobReport{waits}, page.Stalled, "", 1},
	} {
		j := page.Job{StepsPerSecond: 5, BytesPerSecond: 5}
		goesOn(&j, tc.reports, now)
		if j.State != tc.state || j.Cause != tc.cause || len(j.Stalls) != tc.stalls {
			t.Errorf("%s: %s because of %q, %d stalls; want %s, %q, %d", name, j.State, j.Cause, len(j.Stalls), tc.state, tc.cause, tc.stalls)
		}
		if (j.State == page.Over) != (j.StepsPerSecond == 0) {
			t.Errorf("%s: %v steps/s", name, j.StepsPerSecond)
		}
		if j.State == page.Stalled && (j.What == "" || j.Since.IsZero() || j.Stalls[0].Seconds < 12) {
			t.Errorf("%s: %q since %v, %+v", name, j.What, j.Since, j.Stalls)
		}
	}
}

package jobs

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/test/require"
)

// The servers that this host reports as its own are those whose moves it carries
// out.
func TestServedMoves(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.running()
	if !r.GetRouted() || x.toldMoves == nil {
		t.Fatalf("the planner is told %v", r)
	}
	for rank := range int32(x.servers) {
		if x.moves(rank) != slices.Contains(r.GetMoves(), rank) {
			t.Errorf("server %d: moved here %v, the planner is told of %v", rank, x.moves(rank), r.GetMoves())
		}
	}
}

// A copy that the planner says is right goes on where it was; one that it does not
// name is sent again.
func TestCopyIsKept(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1"})
	p := x.jobs.plans
	event := func(e *api.PlanEvent) *api.PlanEvent {
		e.Job, e.Run, e.Servers = x.name, string(x.run), uint32(x.servers)
		return e
	}
	k := runKey{x.name, x.run}
	snapshot := event(&api.PlanEvent{Event: &api.PlanEvent_Snapshot{Snapshot: &api.Snapshot{Version: 3, Mark: 33, First: true, Last: true, Stores: []string{"s"}, Displaced: &api.Displaced{First: []uint64{5}, Owner: []int32{1}}}}})
	change := event(&api.PlanEvent{Event: &api.PlanEvent_Change{Change: &api.Change{Version: 4, Mark: 44, Displaced: &api.Displaced{First: []uint64{6}, Owner: []int32{1}}}}})
	for _, e := range []*api.PlanEvent{snapshot, change} {
		require.NoError(t, p.applyEvent(e))
	}
	r := p.running()
	if len(r) != 1 || r[0].GetCopyVersion() != 4 || r[0].GetCopyMark() != 44 {
		t.Fatalf("the planner is told %v", r)
	}
	for range 2 { // a Watch that ends before its first event loses nothing
		p.beginCopies()
	}
	if r := p.running(); r[0].GetCopyVersion() != 4 {
		t.Fatalf("after Watches that told nothing the planner is told %v", r)
	}
	require.NoError(t, p.applyEvent(event(&api.PlanEvent{Event: &api.PlanEvent_Kept{Kept: &api.Kept{Version: 4, Stores: []string{"s"}}}})))
	if c := p.tables[k]; c == nil || c.table.Owner(5) != 1 || c.table.Owner(6) != 1 {
		t.Errorf("the copy is %v", c)
	}
	p.beginCopies()
	require.NoError(t, p.applyEvent(snapshot))
	if c := p.tables[k]; c.version != 3 || c.table.Owner(6) == 1 && plan.HomeOf(6, x.servers) != 1 {
		t.Errorf("after a snapshot the copy has version %d", c.version)
	}
	p.beginCopies()
	if err := p.applyEvent(event(&api.PlanEvent{Event: &api.PlanEvent_Kept{Kept: &api.Kept{Version: 9}}})); err == nil {
		t.Error("a version that this proxy does not have is taken for its own")
	}
}

package aggregate

import (
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/require"
)

// A host on which containers come and go has more scopes in the course of time than are
// kept: the oldest goes, and the newest is known.
func TestScopesComeAndGo(t *testing.T) {
	table := require.Value(New(Options{}))(t)
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	m.Control.Nodes = []pslite.Node{
		{Role: pslite.Scheduler, ID: pslite.SchedulerID, Hostname: "198.18.0.1", Port: 9091},
		{Role: pslite.Worker, ID: pslite.WorkerID(0), Hostname: "198.18.0.2", Port: 5000},
	}
	at := netip.MustParseAddrPort("198.18.0.2:5000")
	for n := range uint64(maxScopes + 10) {
		scope := jobs.Scope{Cgroup: n + 1}
		table.takeNodeTable(scope, &m)
		if j, id := table.findJob(scope, at); j == nil || id != pslite.WorkerID(0) {
			t.Fatalf("the job of scope %d is not known", n)
		}
	}
	if n := len(table.jobs); n != maxScopes || len(table.scopes) != n {
		t.Errorf("%d scopes are kept, %d in their order, want %d", n, len(table.scopes), maxScopes)
	}
	if j, _ := table.findJob(jobs.Scope{Cgroup: 1}, at); j != nil {
		t.Error("the oldest scope is still there")
	}
}

package aggregate

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/require"
)

// tableOf returns a node table with so many servers, at an address of its own.
func tableOf(scheduler, servers int) *pslite.Meta {
	host := fmt.Sprintf("10.0.0.%d", scheduler)
	m := &pslite.Meta{Control: pslite.Control{Cmd: pslite.AddNode, Nodes: []pslite.Node{{Role: pslite.Scheduler, ID: pslite.SchedulerID, Hostname: host, Port: 9091}}}}
	for i := range servers {
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{Role: pslite.Server, ID: pslite.ServerID(i), Hostname: host, Port: int32(1000 + i)})
	}
	return m
}

// The next proxy knows the nodes of the jobs that run, as they were last. With a file that is damaged
// it knows none.
func TestNodeTablesOutliveTheProxy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "aggregate.json")
	open := func() *Table {
		table := require.Value(New(Options{File: file}))(t)
		return table
	}
	first := open()
	for scope := range uint64(3) {
		for scheduler := range maxJobs + 2 { // two more than are known
			first.takeNodeTable(jobs.Scope{Cgroup: 1 + scope}, tableOf(1+scheduler, 1+int(scope)))
		}
		first.takeNodeTable(jobs.Scope{Cgroup: 1 + scope}, tableOf(maxJobs+2, 4)) // servers were added
	}
	second := open()
	find := func(table *Table, scope uint64, scheduler, server int) int32 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(scheduler)}), uint16(1000+server))
		_, id := table.findJob(jobs.Scope{Cgroup: scope}, at)
		return id
	}
	for scope := uint64(1); scope <= 4; scope++ {
		for scheduler := range maxJobs + 3 {
			for server := range 5 {
				if got, want := find(second, scope, scheduler, server), find(first, scope, scheduler, server); got != want {
					t.Errorf("scope %d, scheduler %d, server %d: node %d, want %d", scope, scheduler, server, got, want)
				}
			}
		}
	}
	if find(second, 2, maxJobs+2, 3) != pslite.ServerID(3) || find(second, 2, 1, 0) != pslite.Empty {
		t.Error("the last node tables are not known, or those that were forgotten are")
	}
	// The order counts when one more comes.
	for _, table := range []*Table{first, second} {
		table.takeNodeTable(jobs.Scope{Cgroup: 2}, tableOf(100, 1))
		if find(table, 2, 3, 0) != pslite.Empty || find(table, 2, 4, 0) == pslite.Empty {
			t.Error("another than the oldest was forgotten")
		}
	}
	b := require.Value(os.ReadFile(file))(t)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(file, b, 0o600))
	if third := open(); find(third, 2, maxJobs+2, 0) != pslite.Empty {
		t.Error("a damaged file is believed")
	}
}

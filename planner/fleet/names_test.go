package fleet

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// An agent that knows another host's server by its address alone is understood to mean the
// server that the agent there knows by rank. What was reported stays as it came; reports
// in which all nodes are known are taken as they are.
func TestNodesHaveOneName(t *testing.T) {
	traffic := func(server string, bytes uint64) []*api.Traffic {
		return []*api.Traffic{{Worker: "worker0", Server: server, ToServer: bytes, Requests: 1}}
	}
	a := &api.HostReport{Host: "a", Jobs: []*api.JobReport{{Job: "j", Traffic: traffic("server@198.18.0.2:8000", 100), Stalls: []*api.Stall{{Who: "worker0", On: "server@198.18.0.2:8000"}}}}}
	b := &api.HostReport{Host: "b", Jobs: []*api.JobReport{{
		Job: "j", Traffic: traffic("server1", 10),
		Nodes: []*api.Node{{Name: "server1", Role: "server", Rank: 1, Address: "198.18.0.2:8000", Local: true}},
	}}}
	before := proto.CloneOf(a)
	s := &State{Reports: func() []*api.HostReport { return []*api.HostReport{a, b} }}
	of := require.Value(s.Servers("j", page.Range{}))(t)
	if len(of.Servers) != 1 || of.Servers[0].Name != "server1" {
		t.Errorf("the servers are %+v", of.Servers)
	}
	if !proto.Equal(a, before) {
		t.Errorf("the report was changed: %v", a)
	}
	reports := s.byJob()["j"].reports
	if got := reports[0].GetStalls()[0].GetOn(); got != "server1" {
		t.Errorf("worker0 waits for %q", got)
	}
	if reports[1] != b.GetJobs()[0] {
		t.Error("a report in which all is known was copied")
	}
}

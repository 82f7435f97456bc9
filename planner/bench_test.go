package planner_test

import (
	"fmt"
	"testing"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
)

// What the memory of a whole report of one of a thousand hosts takes to be added up, which is done
// for each report.
func BenchmarkHeldBytes(b *testing.B) {
	j := &api.JobReport{Job: "j", Steps: []*api.Steps{{Worker: "worker1", Steps: 10}}}
	for i := range uint64(256) {
		j.Blocks = append(j.Blocks, &api.Block{First: i, Last: i, Keys: 1})
	}
	for i := range 1000 {
		j.Nodes = append(j.Nodes, &api.Node{Name: fmt.Sprintf("server%d", i), Role: "server", Rank: int32(i), Address: "198.18.0.1:8000"})
		j.Traffic = append(j.Traffic, &api.Traffic{Worker: "worker1", Server: fmt.Sprintf("server%d", i), ToServer: 1, ToWorker: 1, Requests: 1})
	}
	r := &api.HostReport{Host: "h", Jobs: []*api.JobReport{j}}
	b.ReportAllocs()
	for b.Loop() {
		if planner.HeldBytes(r) < 1000 {
			b.Fatal("too few")
		}
	}
}

package agent

import (
	"testing"

	"github.com/psidecar/psidecar/agent/locality"
)

// A node that answers for the first time while a report is made has a distribution
// and no name in it yet. It waits for the next report.
func TestLatenciesOfNodesWithoutAName(t *testing.T) {
	var first, second locality.Latency
	first.Record(5, 1)
	second.Record(7, 1)
	all := []*locality.Latency{&first, &second}
	for names, want := range []int{0, 1, 2} {
		got := latencies(all, []string{"server0", "server1"}[:names])
		if len(got) != want {
			t.Errorf("%d names: %d distributions, want %d", names, len(got), want)
		}
	}
}

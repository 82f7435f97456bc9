package agent

import (
	"testing"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/history"
)

// A node that answers for the first time while a report is made has a distribution
// and no name in it yet. It waits for the next report.
func TestLatenciesOfNodesWithoutAName(t *testing.T) {
	var first, second history.Latency
	first.Record(5, 1)
	second.Record(7, 1)
	all := []*history.Latency{&first, &second}
	for names, want := range []int{0, 1, 2} {
		got := latencies(all, []string{"server0", "server1"}[:names])
		if len(got) != want {
			t.Errorf("%d names: %d distributions, want %d", names, len(got), want)
		}
	}
}

// What the kernel's programs count as lost is what pages and reports call so.
func TestLostIsOneWord(t *testing.T) {
	if class := bpf.ClassLost.String(); class != page.Lost {
		t.Errorf("bpf has %q, the page %q", class, page.Lost)
	}
}

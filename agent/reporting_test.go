package agent

import (
	"fmt"
	"testing"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
)

// A node that answers for the first time while a report is made has a distribution
// and no name in it yet. It waits for the next report.
func TestLatenciesOfNodesWithoutAName(t *testing.T) {
	var first, second history.Latency
	first.Record(5, 1)
	second.Record(7, 1)
	all := []*history.Latency{&first, &second}
	for names, want := range []int{0, 1, 2} {
		got := latencies(all, []string{"server0", "server1"}[:names], 0)
		if len(got) != want {
			t.Errorf("%d names: %d distributions, want %d", names, len(got), want)
		}
	}
}

// In a job of very many servers a host tells of some, those of another host are
// others, and the times of all are in what it tells.
func TestLatenciesOfManyServers(t *testing.T) {
	const servers = 4096
	var all []*history.Latency
	var names []string
	for i := range servers {
		all, names = append(all, &history.Latency{}), append(names, fmt.Sprint(i))
		all[i].Record(5, 1)
	}
	told := map[string]bool{}
	for host := range servers / leastLatencies {
		list := latencies(all, names, host*leastLatencies)
		sum := uint64(0)
		for _, l := range list {
			told[l.GetName()] = true
			for _, n := range l.GetCounts() {
				sum += n
			}
		}
		if len(list) != leastLatencies+1 || sum != servers {
			t.Fatalf("host %d tells of %d servers, %d requests", host, len(list), sum)
		}
	}
	if len(told) != servers+1 {
		t.Errorf("all hosts together tell of %d servers", len(told)-1)
	}
}

// What the kernel's programs count as lost is what pages and reports call so.
func TestLostIsOneWord(t *testing.T) {
	if class := bpf.ClassLost.String(); class != page.Lost {
		t.Errorf("bpf has %q, the page %q", class, page.Lost)
	}
}

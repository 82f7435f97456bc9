package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// inPods is a planner's view of a job in a cluster: all of it is in pods but
// for the last worker, whose host is known.
type inPods struct{ reporting }

func (p inPods) Jobs() []Job {
	jobs := p.fleet.Jobs()
	for _, role := range []string{"server", "worker"} {
		for i, name := range p.names(role, map[string]int{"server": p.servers, "worker": p.workers}[role]) {
			n := Node{Name: name, Role: role, Rank: i, Local: true, Host: fmt.Sprintf("host-%d", i%2)}
			if name != fmt.Sprintf("worker-%d", p.workers-1) {
				n.PodName = &Pod{Namespace: "train", Name: fmt.Sprintf("ads-%s-%d", role, i), Node: fmt.Sprintf("node-%d", i%2)}
			}
			jobs[0].Nodes = append(jobs[0].Nodes, n)
		}
	}
	return jobs
}

func (p inPods) Agent() Agent {
	a := p.reporting.Agent()
	a.Hosts[0].Machine = &Machine{LinkMbit: 25000, LinkSource: "node's psidecar.io/link-mbit", Cores: 64}
	a.Hosts[1].Machine = &Machine{LinkSource: "no default route", Cores: 8}
	return a
}

// The page names the pod and node of each worker and server, and how fast the
// hosts' links are, by which it names the busiest.
func TestPageNamesPods(t *testing.T) {
	plan := func(job string) (Plan, error) {
		p, err := aPlan(job)
		p.Epochs[0].Hosts[0].LinkMbit, p.Epochs[0].Hosts[1].LinkMbit = 1000, 25000
		return p, err
	}
	ctx := openPageWith(t, inPods{reporting{fleet{workers: 4, servers: 2}}}, Options{Plan: plan})
	do(t, ctx, "stop refreshing", chromedp.Click("#live"))
	columns := func(id string, n int) [][]string {
		return ask(t, ctx, chromedp.Evaluate[[][]string](fmt.Sprintf(
			`[...document.querySelectorAll("#%s table")][0].querySelectorAll("tr").values().map((row) => [...row.cells].slice(0, %d).map((cell) => cell.textContent)).toArray()`, id, n)))
	}
	for _, table := range []struct {
		id   string
		want [][]string
	}{
		{"servers", [][]string{{"server", "pod", "on"}, {"server-1", "train/ads-server-1", "node-1"}, {"server-0", "train/ads-server-0", "node-0"}}},
		{"workers", [][]string{{"worker", "pod", "on"}, {"worker-0", "train/ads-worker-0", "node-0"}, {"worker-1", "train/ads-worker-1", "node-1"},
			{"worker-2", "train/ads-worker-2", "node-0"}, {"worker-3 (straggler)", "", "host-1"}}},
		{"plan-hosts", [][]string{{"host", "link", "before"}, {"host-0", "1 Gbit/s", "700 B"}, {"host-1", "25 Gbit/s", "812 B"}}},
	} {
		if got := columns(table.id, 3); !slices.EqualFunc(got, table.want, slices.Equal) {
			t.Errorf("%s shows %q, want %q", table.id, got, table.want)
		}
	}
	hosts := ask(t, ctx, chromedp.Text("#cost"))
	for _, want := range []string{"25 Gbit/s, node's psidecar.io/link-mbit", "no default route", "64"} {
		if !strings.Contains(hosts, want) {
			t.Errorf("the hosts' table lacks %q: %s", want, hosts)
		}
	}
	do(t, ctx, "look at the first cell", chromedp.Focus("#heat"), chromedp.KeyEvent(kb.ArrowRight))
	if got := readout(t, ctx, "heat"); !strings.Contains(got, "(train/ads-worker-") {
		t.Errorf("over the heatmap: %q", got)
	}
	screenshot(t, ctx, "pods")
}

package page

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// hostsOf is a fleet of three hosts, one of which has a slow link and the only server: keys
// 0 to 99 are used by all workers in each step, keys 1000 to 1999 one in a hundred.
type hostsOf struct{ reporting }

const sharedSteps = 100

func (s hostsOf) Jobs() []Job {
	j := s.reporting.Jobs()[0]
	j.State, j.Servers, j.Workers = Running, 1, 5
	j.Nodes = []Node{{Name: "server0", Role: "server", Host: "host-2"}}
	for i, host := range []string{"host-0", "host-0", "host-0", "host-1", "host-2"} {
		j.Nodes = append(j.Nodes, Node{Name: s.names("worker", 5)[i], Role: "worker", Rank: i, Host: host})
	}
	return []Job{j}
}

func (s hostsOf) Heatmap(job string, q HeatmapQuery) (Heatmap, error) {
	h := Heatmap{Job: job, Workers: s.names("worker", 5), Measure: q.Measure, Exact: true, SampledOneIn: 1,
		Blocks: []Block{NewBlock(0, 99, 100, false), NewBlock(1000, 1999, 1000, false)}}
	for range h.Workers {
		row := []uint64{100 * sharedSteps, 10 * sharedSteps}
		if q.Measure == PushedBytes {
			row = []uint64{row[0] * 4, row[1] * 4}
		}
		h.Counts = append(h.Counts, row)
	}
	return h, nil
}

func (s hostsOf) Servers(job string, r Range) (Servers, error) {
	all, err := s.reporting.Servers(job, r)
	all.Workers = nil
	for _, name := range s.names("worker", 5) {
		all.Workers = append(all.Workers, WorkerLoad{Name: name, Steps: sharedSteps})
	}
	return all, err
}

func (s hostsOf) Agent() Agent {
	a := s.reporting.Agent()
	a.Hosts = []Host{
		{Host: "host-0", Lost: []Counter{}, Machine: &Machine{LinkMbit: 1000, LinkSource: "--link-mbit"}},
		{Host: "host-1", Lost: []Counter{}, Machine: &Machine{LinkMbit: 1000, LinkSource: "--link-mbit"}},
		{Host: "host-2", Lost: []Counter{}, Machine: &Machine{LinkMbit: 100, LinkSource: "--link-mbit"}},
	}
	return a
}

func sharedRules(string) SumRules {
	return SumRules{Rules: []measure.SumRule{{Keys: &measure.KeyRange{First: 1000, Last: 1999}, Form: measure.SumHost}},
		Hosts: []CodecHost{{Host: "host-0", Current: true}, {Host: "host-1"}}}
}

func TestAlphaHasTheRulesOfAPlanner(t *testing.T) {
	code, body := get(t, Handler(hostsOf{}, Options{Sums: sharedRules}), "/api/v1/alpha?job="+fleetJob)
	var a Alpha
	if err := json.Unmarshal([]byte(body), &a); code != http.StatusOK || err != nil || a.Sums == nil || len(a.Ranges) != 2 {
		t.Fatalf("%d, %s, %v", code, body, err)
	}
	// Workers elsewhere pull and push 400 bytes each, four of them; the server's link is slow.
	if a.Forms["servers"] != 2*4*(400+40) || a.Busiest["servers"] != "host-2" || a.Seconds["servers"] != a.Forms["servers"]*8/100e6 {
		t.Errorf("%+v", a.Compared)
	}
	dense, sparse := a.Ranges[0], a.Ranges[1]
	if dense.Chosen != "host_sums" || dense.Now != "" || sparse.Chosen != "servers" || sparse.Now != "host" {
		t.Errorf("%+v", a.Ranges)
	}
	if len(a.Sums.Proposed) != 2 || a.Sums.Proposed[0].Range() != (measure.KeyRange{First: 0, Last: 99}) {
		t.Errorf("%+v", a.Sums)
	}
	if _, body := get(t, Handler(hostsOf{}, Options{}), "/api/v1/alpha?job="+fleetJob); strings.Contains(body, `"sums"`) {
		t.Errorf("an agent's: %s", body)
	}
	// As if on two machines.
	for query, want := range map[string]string{"machines=2&link-speed=1": "want one each", "machines=2&link-speed=a,b": "want numbers", "machines=2&link-speed=1,-1": "above 0"} {
		if code, body := get(t, Handler(hostsOf{}, Options{}), "/api/v1/alpha?job="+fleetJob+"&"+query); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %s", query, code, body)
		}
	}
	_, body = get(t, Handler(hostsOf{}, Options{}), "/api/v1/alpha?job="+fleetJob+"&machines=2&each=2&link-speed=8,80")
	if err := json.Unmarshal([]byte(body), &a); err != nil || !a.Even || a.Seconds["servers"] != a.Forms["servers"]/1e6 {
		t.Errorf("%s, %v", body, err)
	}
}

// The page shows the forms of each range, what is chosen, the rules, and the commands that
// change them.
func TestPageShowsForms(t *testing.T) {
	ctx := openPageWith(t, hostsOf{}, Options{Sums: sharedRules})
	rows := ask(t, ctx, chromedp.Evaluate[[][]string](
		`[...document.querySelectorAll("#sum-ranges tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent))`))
	set := "psidecar plan aggregate apply --job " + fleetJob
	want := [][]string{
		{"0 to 99", "100", "400 B", "1", "3.20 kB, 256 µs", "1.60 kB, 128 µs", "1.07 kB, 85.3 µs", "1.60 kB, 128 µs", "host-2", "all-reduce", "host sums", "none", set + " --keys 0-99 --form host --actcopy"},
		{"1\u202f000 to 1\u202f999", "1000", "4.00 kB", "0.01", "320 B, 25.6 µs", "318 B, 25.4 µs", "10.7 kB, 853 µs", "239 B, 19.1 µs", "host-2", "all-gather", "servers", "summed", set + " --keys 1000-1999 --form none --actcopy"},
	}
	if !slices.EqualFunc(rows, want, slices.Equal) {
		t.Errorf("the page shows %q, want %q", rows, want)
	}
	text := ask(t, ctx, chromedp.Text("#sums"))
	for _, part := range []string{"3.52 kB, 282 µs per step at host-2", "; 1.92 kB, 154 µs with the chosen forms", "keys 0-99 summed, others one by one", "keys 1000-1999 summed",
		"2 proxies follow; not up to date: host-1 (not yet)", set + " --act", "psidecar plan aggregate clear --job " + fleetJob + " --act", "this planner only proposes"} {
		if !strings.Contains(text, part) {
			t.Errorf("the page does not say %q: %s", part, text)
		}
	}
	if ask(t, ctx, chromedp.Evaluate[bool](`document.getElementById("sums-section").hidden`)) {
		t.Error("the forms are hidden")
	}
	screenshot(t, ctx, "sums")
	loadAxe(t, ctx)
	do(t, ctx, "stop refreshing", chromedp.Click("#live"))
	checkThemes(t, ctx, "sums")
}

// An agent's page knows of no forms.
func TestAgentsPageHasNoForms(t *testing.T) {
	ctx := openPageWith(t, fleet{workers: 4, servers: 2}, Options{})
	if !ask(t, ctx, chromedp.Evaluate[bool](`document.getElementById("sums-section").hidden`)) {
		t.Error("empty forms are shown")
	}
}

package agent

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/agent/observe"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// jobAt is a job with a scheduler and a worker at these addresses.
func jobAt(scheduler, worker string) *observe.JobView {
	at := netip.MustParseAddrPort(scheduler)
	return &observe.JobView{Job: &observe.Job{Scheduler: at}, Nodes: []observe.NodeView{
		{Name: "scheduler", Address: at}, {Name: "worker0", Address: netip.MustParseAddrPort(worker)}, {Name: "server0"},
	}}
}

// Why no connection of a job is carried is known to the agent, and said of each
// measure that somebody asked for.
func TestMeasuresOfTheAgent(t *testing.T) {
	none, one := func() int { return 0 }, func() int { return 1 }
	proxy := func(job string, _ bool) []measure.Line {
		return []measure.Line{
			{Job: job, Measure: measure.Carry, State: measure.Off, Not: []measure.Gap{{Reason: "no_connections"}}},
			{Job: job, Measure: measure.Threshold, State: measure.Off, Setting: "--threshold 0.99", From: "flags", Not: []measure.Gap{{Reason: "no_connections"}}},
			{Job: job, Measure: measure.Slim, State: measure.Off, Not: []measure.Gap{{Reason: measure.NotSet}}},
		}
	}
	const far, near = "198.18.0.1:9000", "127.0.0.1:9000"
	for name, c := range map[string]struct {
		at, worker string
		carried    Carried
		adoption   *page.Adoption
		want       []string // measure, state, reason
	}{
		"an agent alone":             {far, far, Carried{}, nil, []string{"carry off not_intercepted"}},
		"beside a proxy":             {far, far, Carried{Proxies: one}, nil, []string{"carry on "}},
		"without its proxy":          {far, far, Carried{Proxies: none}, nil, []string{"carry off no_proxy_here"}},
		"on loopback":                {near, near, Carried{Proxies: one}, nil, []string{"carry off loopback"}},
		"on loopback and elsewhere":  {near, far, Carried{Proxies: one}, nil, []string{"carry on "}},
		"up, on loopback":            {near, near, Carried{Proxies: one, Measures: proxy}, nil, []string{"carry off loopback", "threshold off loopback", "slim off not_set"}},
		"up, nothing carried as yet": {far, far, Carried{Proxies: one, Measures: proxy}, nil, []string{"carry off no_connections", "threshold off no_connections", "slim off not_set"}},
		"up that spares fast links":  {far, far, Carried{Proxies: one, Measures: proxy}, &page.Adoption{Past: map[string]int{page.FastLink: 3}}, []string{"carry off fast_link", "threshold off fast_link", "slim off not_set"}},
		"up that does not intercept": {far, far, Carried{Measures: proxy}, nil, []string{"carry off not_intercepted", "threshold off not_intercepted", "slim off not_set"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Agent{opts: Options{Carried: c.carried, Adoption: func() *page.Adoption { return cmp.Or(c.adoption, &page.Adoption{}) }}, findings: map[string]stallFinding{c.at: {State: page.Running}}}
			j := page.Job{Name: c.at, State: page.Running, Connections: page.Connections{Synced: 4}}
			lines := a.measures(jobAt(c.at, c.worker), &j)
			if l := lines[0]; l.Measure != measure.Observe || l.State != measure.On || l.On != 4 {
				t.Errorf("observe: %+v", l)
			}
			var got []string
			for _, l := range lines[1:] {
				reason := ""
				for _, g := range l.Not {
					reason += g.Reason
					if g.Reason == "loopback" && (!strings.Contains(g.Why, "127.0.0.1") || g.Do == "") {
						t.Errorf("%+v", g)
					}
				}
				got = append(got, l.Measure+" "+l.State+" "+reason)
			}
			if strings.Join(got, ", ") != strings.Join(c.want, ", ") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	a := &Agent{}
	if lines := a.measures(jobAt(far, far), &page.Job{State: page.Over}); len(lines) != 0 {
		t.Errorf("of a job that is over: %+v", lines)
	}
}

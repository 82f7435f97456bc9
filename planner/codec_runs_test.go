package planner

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/require"
)

// An entry of the store that cannot be read leaves the rules as they are.
func TestDamagedRun(t *testing.T) {
	kept := &store.Memory{}
	require.NoError(t, kept.Write(t.Context(), []store.Entry{{Name: runPrefix + "a:1", Value: []byte("{")}, {Name: codecPrefix + "a:1", Value: []byte(on)}}))
	s := newService(t, kept)
	if s.rules["a:1"] != on || len(s.forRun) != 0 {
		t.Errorf("%v, %v", s.rules, s.forRun)
	}
}

// Rules for a run hold until all processes that it has on the hosts of then are gone and others
// have started. A worker that is replaced, hosts that are not heard, a new planner and rules that
// are for the run as well change nothing; rules that are not for a run stay.
func TestRulesForARun(t *testing.T) {
	const job, drain, more = "a:1", `[{"threshold-end":20}]`, `[{"threshold-end":40}]`
	began := time.Unix(1000, 0)
	set := func(rules, later string) func(*testing.T, *Codecs) {
		return func(t *testing.T, s *Codecs) {
			_, err := s.Set(t.Context(), &api.JobRules{Job: job, Rules: rules, ForRun: later != "", Later: later})
			require.NoError(t, err)
		}
	}
	for name, c := range map[string]struct {
		set  []func(*testing.T, *Codecs)
		then JobProcesses
		want string
	}{
		"the run goes on":       {nil, JobProcesses{Since: began, On: []string{"a", "b"}, Lately: map[string]bool{"a": true, "b": true}}, drain},
		"it is over":            {nil, JobProcesses{Lately: map[string]bool{"a": true, "b": true}}, drain},
		"another has begun":     {nil, JobProcesses{Since: began.Add(2 * time.Hour), On: []string{"a"}, Lately: map[string]bool{"a": true, "b": true}}, on},
		"a worker is replaced":  {nil, JobProcesses{Since: began, On: []string{"a", "c"}, Lately: map[string]bool{"a": true, "b": true, "c": true}}, drain},
		"a host is not heard":   {nil, JobProcesses{Since: began.Add(2 * time.Hour), On: []string{"b"}, Lately: map[string]bool{"b": true}}, drain},
		"clocks differ":         {nil, JobProcesses{Since: began.Add(time.Hour + time.Second), Lately: map[string]bool{"a": true, "b": true}}, drain},
		"drained again":         {[]func(*testing.T, *Codecs){set(more, drain)}, JobProcesses{Since: began.Add(2 * time.Hour), Lately: map[string]bool{"a": true, "b": true}}, on},
		"changed for good":      {[]func(*testing.T, *Codecs){set(more, "")}, JobProcesses{Since: began.Add(2 * time.Hour), Lately: map[string]bool{"a": true, "b": true}}, more},
		"cleared":               {[]func(*testing.T, *Codecs){set("", "")}, JobProcesses{Since: began.Add(2 * time.Hour), Lately: map[string]bool{"a": true, "b": true}}, ""},
		"cleared and set again": {[]func(*testing.T, *Codecs){set("", ""), set(drain, "")}, JobProcesses{Since: began.Add(2 * time.Hour), Lately: map[string]bool{"a": true, "b": true}}, drain},
	} {
		t.Run(name, func(t *testing.T) {
			kept := &store.Memory{}
			now := JobProcesses{Since: began, On: []string{"a", "b"}, Lately: map[string]bool{"a": true, "b": true}}
			begin := func() *Codecs {
				s := newService(t, kept)
				s.now = func() time.Time { return began.Add(time.Hour) }
				s.Runs = func(string) JobProcesses { return now }
				return s
			}
			s := begin()
			for _, change := range append([]func(*testing.T, *Codecs){set(on, ""), set(drain, on)}, c.set...) {
				change(t, s)
			}
			now = c.then
			for range 2 {
				s = begin() // a planner that begins anew has all of it
				require.NoError(t, s.EndRuns(t.Context()))
			}
			s = begin()
			d := require.Value(s.Describe(t.Context(), &api.DescribeRulesRequest{Job: job}))(t)
			got := ""
			for _, j := range d.GetRules().GetJobs() {
				got = j.GetRules()
				if forRun := got == drain && len(c.set) == 0; j.GetForRun() != forRun || forRun && j.GetLater() != on {
					t.Errorf("%v", j)
				}
			}
			if got != c.want {
				t.Errorf("the rules are %q, want %q", got, c.want)
			}
		})
	}
}

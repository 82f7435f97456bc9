package proxy

import (
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/test/require"
)

// summing returns a proxy that sums pushes, of all jobs or where somebody asks.
func summing(t *testing.T, o aggregate.Options, asked bool) *Proxy {
	t.Helper()
	table := require.Value(aggregate.New(o))(t)
	p := require.Value(New(Options{Aggregate: table, AggregateAsked: asked, Titles: &policy.Titles{}}))(t)
	return p
}

// The owner of a job comes before the planner, by the job's address or its name, and the
// planner before flags.
func TestWhoAsksForSums(t *testing.T) {
	rules := map[string][]measure.SumRule{
		measuredJob: {{Form: measure.SumHost, Keys: &measure.KeyRange{Last: 99}}, {Form: measure.SumNone, Keys: &measure.KeyRange{First: 100, Last: 199}}},
		"ads/ctr":   {{Form: measure.SumNone}},
	}
	low, middle, high, both := measure.KeyRange{Last: 9}, measure.KeyRange{First: 120, Last: 130}, measure.KeyRange{First: 500, Last: 600}, measure.KeyRange{First: 90, Last: 110}
	for _, c := range []struct {
		name  string
		asked bool
		rules map[string][]measure.SumRule
		title policy.JobTitle
		job   string
		want  [4]bool // of low, middle, high and both
	}{
		{"flags", false, nil, policy.JobTitle{}, measuredJob, [4]bool{true, true, true, true}},
		{"nobody", true, nil, policy.JobTitle{}, measuredJob, [4]bool{}},
		{"planner beside flags", false, rules, policy.JobTitle{}, measuredJob, [4]bool{true, false, true, false}},
		{"planner alone", true, rules, policy.JobTitle{}, measuredJob, [4]bool{true, false, false, false}},
		{"another job", true, rules, policy.JobTitle{}, "198.18.0.9:1", [4]bool{}},
		{"a name", false, rules, policy.JobTitle{Name: "ads/ctr"}, "198.18.0.9:1", [4]bool{}},
		{"owner", true, rules, policy.JobTitle{Wishes: policy.Policy{Aggregate: "host"}}, measuredJob, [4]bool{true, true, true, true}},
		{"owner says none", false, rules, policy.JobTitle{Wishes: policy.Policy{Aggregate: "none"}}, measuredJob, [4]bool{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := summing(t, aggregate.Options{}, c.asked)
			p.SetSums(c.rules)
			p.opts.Titles.Set("worker", c.job, c.title)
			var got [4]bool
			for i, keys := range []measure.KeyRange{low, middle, high, both} {
				got[i] = p.aggregates(&connection{job: c.job, origin: "worker"}, c.job, keys)
			}
			if got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// The line of sums names its source, the number of connections that have them, and the
// reasons of the others.
func TestSumsLine(t *testing.T) {
	on, alone, quiet := carried{codec: values.Name, summed: summed{said: true}}, carried{codec: values.Name, summed: summed{said: true, why: aggregate.Alone}}, carried{codec: values.Name}
	planned := map[string][]measure.SumRule{measuredJob: {{Form: measure.SumHost}}}
	none := require.Value(New(Options{}))(t)
	wanted := require.Value(New(Options{}))(t)
	wanted.SetSums(planned)
	asked := summing(t, aggregate.Options{}, true)
	planner := summing(t, aggregate.Options{}, true)
	planner.SetSums(planned)
	for name, c := range map[string]struct {
		p                   *Proxy
		all                 []carried
		text, reason, words string
	}{
		"nothing":       {none, []carried{on}, "off", measure.NotSet, "--aggregate host of psidecar proxy and up, with --handler add"},
		"planner only":  {wanted, []carried{on}, "off", measure.NotSet, "does not know that the servers add"},
		"not asked for": {asked, []carried{on}, "off", measure.NotSet, "plan aggregate apply"},
		"planner":       {planner, []carried{on, quiet}, "on (planner: aggregate host), 1 of 1 connections", "", ""},
		"in part":       {summing(t, aggregate.Options{Trials: &payoff.Trials{}}, false), []carried{on, alone, quiet}, "part (flags: --aggregate auto), 1 of 2 connections", aggregate.Alone, "no other worker"},
		"no pushes":     {summing(t, aggregate.Options{}, false), []carried{quiet}, "off (flags: --aggregate host)", noPushes, "no push of 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			l := lineOf(t, c.p.measures(measuredJob, c.all), measure.Aggregate)
			if l.String() != c.text {
				t.Errorf("%q, want %q", l.String(), c.text)
			}
			if c.reason == "" {
				if len(l.Not) > 0 {
					t.Errorf("%+v", l.Not)
				}
				return
			}
			if len(l.Not) != 1 || l.Not[0].Reason != c.reason || !strings.Contains(l.Not[0].String(), c.words) {
				t.Errorf("%+v, want %s: %s", l.Not, c.reason, c.words)
			}
		})
	}
}

// Every reason is in words.
func TestReasonsOfSums(t *testing.T) {
	for _, why := range aggregate.Reasons {
		if text := sumsWhy[why]; text[0] == "" || text[1] == "" {
			t.Errorf("%s is not explained", why)
		}
	}
}

package values

import (
	"testing"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy/codec/compact"
)

const jobAddress, jobName = "10.0.0.1:9091", "ns/train"

// titled returns a codec with rules, for a job of which the agent says that.
func titled(t *testing.T, wishes policy.Policy, local, planned []Rule) *Codec {
	t.Helper()
	table := &policy.Titles{}
	table.Set("cgroup 1", jobAddress, policy.JobTitle{Name: jobName, Wishes: wishes})
	c, err := New(Options{Compact: compact.DefaultLimits, Titles: table, Rules: local})
	if err == nil {
		err = c.SetPlanned(planned)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A job's rules hold by its name as by its address; what its owner asks for comes after
// the planner's word, and before the flags'.
func TestWishesComeBetweenPlannerAndFlags(t *testing.T) {
	type rules = []Rule
	for _, c := range []struct {
		name           string
		wishes         policy.Policy
		local, planned rules
		threshold      float64
		quantize       int
		planners, ask  bool
	}{
		{"nothing", policy.Policy{}, nil, nil, 0, 0, false, false},
		{"by name", policy.Policy{}, nil, rules{{Job: jobName, Threshold: 0.9}}, 0.9, 0, true, false},
		{"by address", policy.Policy{}, nil, rules{{Job: jobAddress, Threshold: 0.9}}, 0.9, 0, true, false},
		{"another job's", policy.Policy{}, nil, rules{{Job: "ns/other", Threshold: 0.9}}, 0, 0, false, false},
		{"its owner's", policy.Policy{Threshold: "0.5"}, nil, nil, 0.5, 0, false, true},
		{"its owner's before the flags'", policy.Policy{Threshold: "0.5"}, rules{{Threshold: 0.99, Quantize: 4}}, nil, 0.5, 4, false, true},
		{"its owner's auto", policy.Policy{Threshold: "auto"}, rules{{Threshold: 0.9, Quantize: 4}}, nil, AutoThreshold, 4, false, true},
		{"its owner's, not the flags' auto", policy.Policy{Threshold: "0.5"}, rules{{Threshold: 0.99, Auto: true}}, nil, 0.5, 0, false, true},
		{"its owner wants none", policy.Policy{Threshold: "0"}, rules{{Threshold: 0.99, Quantize: 4}}, nil, 0, 4, false, false},
		{"the planner's before its owner's", policy.Policy{Threshold: "0.5"}, nil, rules{{Job: jobName, Threshold: 0.9}}, 0.9, 0, true, false},
		{"its owner's and slim", policy.Policy{Threshold: "0.5"}, rules{{Slim: &Slim{Alpha: 0.3, Epsilon: 0.1}}}, nil, 0.5, 0, false, true},
		{"its owner's and activations", policy.Policy{Threshold: "0.5"}, rules{{Activations: 0.9}}, nil, 0.5, 0, false, true},
	} {
		held := titled(t, c.wishes, c.local, c.planned).Held(jobAddress, false)
		var got Held
		if len(held) > 0 {
			got = held[0]
		}
		if len(held) > 1 || got.Threshold != c.threshold || got.Quantize != c.quantize || got.Planned != c.planners || got.Asked != c.ask {
			t.Errorf("%s: %+v", c.name, held)
		}
		if got.Auto != (c.wishes.Threshold == policy.Auto) {
			t.Errorf("%s: auto is %v", c.name, got.Auto)
		}
		if err := CheckRules([]Rule{got.Rule}); err != nil && len(held) > 0 {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Processes of another origin that name the same scheduler have neither the rules of
// its name nor what its owner asks for.
func TestWishesOfAnotherOrigin(t *testing.T) {
	c := titled(t, policy.Policy{Threshold: "0.5"}, nil, []Rule{{Job: jobName, Quantize: 4}})
	for origin, want := range map[string]bool{"cgroup 1": true, "cgroup 2": false} {
		title := c.titles.Of(origin, jobAddress)
		spans := compile(c.rules.Load().with(title), jobAddress, title.Name, acrossHosts)
		if got := spans[0].rule != nil; got != want {
			t.Errorf("%s has rules: %v", origin, got)
		}
	}
}

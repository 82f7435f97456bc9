package values

import (
	"slices"

	"github.com/psidecar/psidecar/internal/policy"
)

// isFor reports whether a rule applies to a job, by its scheduler's address or its
// name; both may be empty.
func (r *Rule) isFor(job, name string) bool {
	return r.Job == "" || r.Job == job || name != "" && r.Job == name
}

// with returns the rules for a job of that title: the planner's, which somebody gave
// for this job, then those of the flags with the threshold that the job's owner asks
// for, if he does. A wish changes the threshold and nothing else: what contradicts it
// is left out.
func (s *ruleSet) with(t policy.JobTitle) []Rule {
	share, asked := t.Wishes.Share()
	if !asked {
		return s.rules
	}
	auto := t.Wishes.Threshold == policy.Auto
	if auto {
		share = AutoThreshold
	}
	rules := slices.Clone(s.rules)
	local := rules[s.planned:]
	for i := range local {
		r := local[i]
		if r.Threshold, r.Auto = share, auto; share > 0 {
			r.Slim = nil // both choose which values go
		}
		// The wish and the rule contradict each other in a way that is not known
		// here: the wish alone is left.
		if r.Check() != nil {
			r = Rule{Job: r.Job, Keys: r.Keys, Threshold: share, Auto: auto}
		}
		local[i] = r
	}
	if share > 0 {
		rules = append(rules, Rule{Threshold: share, Auto: auto})
	}
	return rules
}

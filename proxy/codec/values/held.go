package values

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/psidecar/psidecar/internal/policy"
)

// Held is a rule that holds for some keys of a job, and where it comes from.
type Held struct {
	Rule
	Planned bool // by the planner, not by flags, file or interface
	Asked   bool // its threshold is a wish of the job's owner
}

// Held returns the rules that hold for keys of a job, in ascending order of the keys,
// on links within a host or to others. It is for status and metrics: links compile
// their own.
func (c *Codec) Held(job string, sameHost bool) []Held {
	c.mu.Lock()
	planned, at := c.planned, acrossHosts
	if sameHost {
		at = withinHost
		for _, o := range c.origins {
			if o.job == job && o.leaves {
				at = amongHosts
			}
		}
	}
	c.mu.Unlock()
	var title policy.JobTitle
	for _, t := range c.titles.All(job) {
		title.Name, title.Wishes = cmp.Or(title.Name, t.Name), title.Wishes.Over(t.Wishes)
	}
	_, asked := title.Wishes.Share()
	var held []Held
	for _, s := range compile(c.rules.Load().with(title), job, title.Name, at) {
		if s.rule == nil || slices.ContainsFunc(held, func(h Held) bool { return reflect.DeepEqual(h.Rule, *s.rule) }) {
			continue
		}
		held = append(held, Held{Rule: *s.rule, Asked: asked && s.rule.Threshold > 0})
	}
	// A rule that is also among the planner's counts as planned.
	for _, s := range compile(planned, job, title.Name, at) {
		for i := range held {
			if s.rule != nil && reflect.DeepEqual(held[i].Rule, *s.rule) {
				held[i].Planned, held[i].Asked = true, false
			}
		}
	}
	return held
}

// JobOf returns the job of an origin, empty if it is not known.
func (c *Codec) JobOf(origin string) string { return c.jobOf(origin) }

// Changes reports whether a rule may change values of a job.
func (c *Codec) Changes(job string) bool {
	return len(c.Held(job, false)) > 0 || len(c.Held(job, true)) > 0
}

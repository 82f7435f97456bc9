package values

import (
	"reflect"
	"slices"
)

// Held is a rule that holds for some keys of a job.
type Held struct {
	Rule
	Planned bool // by the planner, not by flags, file or interface
}

// Held returns the rules that hold for keys of a job, in ascending order of the
// keys, on links within a host or to others.
func (c *Codec) Held(job string, sameHost bool) []Held {
	c.mu.Lock()
	planned := c.planned
	c.mu.Unlock()
	var held []Held
	for _, s := range compile(c.Rules(), job, sameHost) {
		if s.rule == nil || slices.ContainsFunc(held, func(h Held) bool { return reflect.DeepEqual(h.Rule, *s.rule) }) {
			continue
		}
		held = append(held, Held{Rule: *s.rule})
	}
	for _, s := range compile(planned, job, sameHost) {
		for i := range held {
			held[i].Planned = held[i].Planned || s.rule != nil && reflect.DeepEqual(held[i].Rule, *s.rule)
		}
	}
	return held
}

// JobOf returns the job of an origin of links, empty where it is not known.
func (c *Codec) JobOf(origin string) string { return c.jobOf(origin) }

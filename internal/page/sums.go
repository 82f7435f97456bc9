package page

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// SumRules are a planner's rules about summing the pushes of a job's workers by host.
type SumRules struct {
	// Rules are those of the job or, if it has none, of its name. The first one that covers a
	// key applies. Without rules, the flags of the proxies decide.
	Rules    []measure.SumRule `json:"rules"`
	Proposed []measure.SumRule `json:"proposed"` // rules derived from measurement; none: sums are not worth it
	Acts     bool              `json:"acts"`     // the planner applies what it proposes
	Hosts    []CodecHost       `json:"hosts"`    // whose proxies follow the planner
}

// follow adds the rules in force, and what is proposed, to the answer.
func (a *Alpha) follow(rules SumRules) {
	rules.Proposed = a.SumRules()
	a.Sums = &rules
	for i := range a.Ranges {
		r := &a.Ranges[i]
		r.Now = now(rules.Rules, measure.KeyRange{First: uint64(r.First), Last: uint64(r.Last)})
	}
}

// now returns what rules do with a range of keys: see AlphaRange.Now. A range is summed as a
// whole if the rules decide so for all of it; it is not summed at all if the opposite rules do.
func now(rules []measure.SumRule, keys measure.KeyRange) string {
	touches := func(r measure.SumRule) bool { k := r.Range(); return k.First <= keys.Last && keys.First <= k.Last }
	switch {
	case !slices.ContainsFunc(rules, touches):
		return ""
	case measure.DecideSums(rules, keys, false):
		return measure.SumHost
	case measure.DecideSums(opposite(rules), keys, false):
		return measure.SumNone
	}
	return "part"
}

// opposite returns rules that sum a key exactly if these do not.
func opposite(rules []measure.SumRule) []measure.SumRule {
	turned := slices.Clone(rules)
	for i := range turned {
		if turned[i].Form == measure.SumHost {
			turned[i].Form = measure.SumNone
		} else {
			turned[i].Form = measure.SumHost
		}
	}
	return turned
}

// SumRules returns rules that sum where that is worth it according to alpha; none if it is not
// worth it anywhere.
func (a *Alpha) SumRules() []measure.SumRule {
	found, all := a.chosen(measure.MaxSumRules - 1)
	return measure.SumRulesOf(found, all)
}

// chosen returns the ranges for which host sums are chosen, neighbours joined; of too many,
// those that save most. all says that they are chosen for every range, so that keys still to
// come can be expected to be alike.
func (a *Alpha) chosen(most int) (ranges []measure.KeyRange, all bool) {
	type saving struct {
		measure.KeyRange
		saved float64
	}
	var found []saving
	// A range that is not chosen ends a run of neighbours.
	all, joins := len(a.Ranges) > 0, false
	for i := range a.Ranges {
		r := &a.Ranges[i]
		if r.Chosen != FormHostSums.String() {
			all, joins = false, false
			continue
		}
		next := saving{measure.KeyRange{First: uint64(r.First), Last: uint64(r.Last)}, r.saved()}
		if joins {
			last := &found[len(found)-1]
			last.Last, last.saved = next.Last, last.saved+next.saved
		} else {
			found = append(found, next)
		}
		joins = true
	}
	// A job may have a bounded number of rules. The ones that save most are kept, in the order
	// of keys.
	slices.SortStableFunc(found, func(a, b saving) int { return cmp.Compare(b.saved, a.saved) })
	found = found[:min(len(found), most)]
	slices.SortFunc(found, func(a, b saving) int { return cmp.Compare(a.First, b.First) })
	for _, s := range found {
		ranges = append(ranges, s.KeyRange)
	}
	return ranges, all
}

// saved returns what host sums save the busiest machine: seconds, or bytes if no link's speed
// is known.
func (c *Compared) saved() float64 {
	by := c.Forms
	if c.Seconds != nil {
		by = c.Seconds
	}
	return by[FormServers.String()] - by[FormHostSums.String()]
}

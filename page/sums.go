package page

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// SumRules are what a planner has on whether pushes of a job's hosts are summed.
type SumRules struct {
	// Rules are those of the job, or, where it has none, of its name; the first that has a
	// key counts. None: what proxies' own flags say holds.
	Rules    []measure.SumRule `json:"rules"`
	Proposed []measure.SumRule `json:"proposed"` // as they would be by what was measured; none: nothing is worth it
	Acts     bool              `json:"acts"`     // the planner sets what it proposes by itself
	Hosts    []CodecHost       `json:"hosts"`    // whose proxies follow the planner
}

// follow takes up the rules that hold.
func (a *Alpha) follow(rules SumRules) {
	rules.Proposed = a.SumRules()
	a.Sums = &rules
	for i := range a.Ranges {
		r := &a.Ranges[i]
		r.Now = now(rules.Rules, measure.KeyRange{First: uint64(r.First), Last: uint64(r.Last)})
	}
}

// now says what rules have on a range of keys.
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

// opposite returns rules by which a key is summed where by these it is not.
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

// SumRules returns rules that sum what is worth it, by measured alpha; none where nothing
// is.
func (a *Alpha) SumRules() []measure.SumRule {
	found, all := a.chosen(measure.MaxSumRules - 1)
	return measure.SumRulesOf(found, all)
}

// chosen returns of which ranges sums of each host are chosen: those of keys that are
// neighbours as one, and of too many those that save most. All says that it is so of all
// ranges, so that keys that are new are to be expected to be alike.
func (a *Alpha) chosen(most int) (ranges []measure.KeyRange, all bool) {
	type saving struct {
		measure.KeyRange
		saved float64
	}
	var found []saving
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
	slices.SortStableFunc(found, func(a, b saving) int { return cmp.Compare(b.saved, a.saved) })
	found = found[:min(len(found), most)]
	slices.SortFunc(found, func(a, b saving) int { return cmp.Compare(a.First, b.First) })
	for _, s := range found {
		ranges = append(ranges, s.KeyRange)
	}
	return ranges, all
}

// saved is what sums save the busiest machine: seconds, or bytes where no link's speed is
// known.
func (c *Compared) saved() float64 {
	by := c.Forms
	if c.Seconds != nil {
		by = c.Seconds
	}
	return by[FormServers.String()] - by[FormHostSums.String()]
}

package values

import (
	"math"
	"slices"
)

// span is a range of keys to which one rule applies; its keys of few values are one
// layer.
type span struct {
	Range
	rule *Rule // nil: none
}

// place is where a link is.
type place int

const (
	acrossHosts place = iota
	// amongHosts is within a host whose process has links to other hosts as well. What it
	// pushes to a server of its own host changes that server's answers to all the others.
	amongHosts
	withinHost // of a job that is on this host alone
)

// compile cuts the key space wherever what holds for a key changes: the spans ascend
// and have no gaps, from key 0 to the largest. The first rule that matches a key holds.
// Rules of other jobs do not count; on links within a host nothing lossy does that was
// not asked for there, except for a threshold where the job has other hosts.
//
// Neighbouring pieces with the same rule and layer are joined, so that a rule of
// another job or a range inside of a range does not split a layer. The rules that spans
// point to are copies, with defaults filled in.
func compile(rules []Rule, job, name string, at place) []span {
	var mine []Rule
	for i := range rules {
		r := rules[i].withDefaults()
		if !r.isFor(job, name) {
			continue
		}
		if at != acrossHosts && !r.SameHost {
			share, auto := r.Threshold, r.Auto
			if r = r.lossless(); at == amongHosts {
				r.Threshold, r.Auto = share, auto
			}
		}
		mine = append(mine, r)
	}
	// What holds can change only at the first key of a range, or behind its last.
	starts := []uint64{0}
	cut := func(r Range) {
		starts = append(starts, r.First)
		if r.Last < math.MaxUint64 {
			starts = append(starts, r.Last+1)
		}
	}
	for i := range mine {
		cut(mine[i].Keys)
		for _, l := range mine[i].Layers {
			cut(l)
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	spans := make([]span, 0, len(starts))
	layer := 0 // of the span before
	for i, first := range starts {
		s := span{Range: Range{first, math.MaxUint64}}
		if i+1 < len(starts) {
			s.Last = starts[i+1] - 1
		}
		if at := slices.IndexFunc(mine, func(r Rule) bool { return r.Keys.contains(first) }); at >= 0 {
			s.rule = &mine[at]
		}
		now := s.layerNumber()
		if n := len(spans); n > 0 && spans[n-1].rule == s.rule && layer == now {
			spans[n-1].Last = s.Last
			continue
		}
		spans, layer = append(spans, s), now
	}
	return spans
}

func (r Range) contains(key uint64) bool { return r.First <= key && key <= r.Last }

// layerNumber is which of the rule's layers the span's first key is in; 0: in none of
// them.
func (s *span) layerNumber() int {
	if s.rule == nil {
		return 0
	}
	return 1 + slices.IndexFunc(s.rule.Layers, func(r Range) bool { return r.contains(s.First) })
}

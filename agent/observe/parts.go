package observe

import (
	"cmp"
	"slices"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
)

// A PartRange is a range of keys that are parts of other keys: First of Whole, First+1 of Whole+1, and so on.
type PartRange struct{ First, Last, Whole uint64 }

// partKeys are a job's keys that are parts of others: ranges, ascending and disjoint.
type partKeys struct {
	ranges []PartRange
	known  int   // number of ranges that Options.PartKeys has returned
	asked  int64 // when it was last asked, in nanoseconds since 1970
}

// partsAskedEvery is how often it is asked for part keys while there are messages of the job, besides before
// each answer is counted: what is known late is to be forgotten soon, also if no answer comes any more.
const partsAskedEvery = 100 * time.Millisecond

// lookForParts is learnParts at times, for a message of the job at that time.
func (o *Observer) lookForParts(j *Job, at int64) {
	if since := at - j.parts.asked; since < 0 || since >= int64(partsAskedEvery) {
		j.parts.asked = at
		o.learnParts(j)
	}
}

// learnParts asks for part keys that are not known yet. What was counted under them is forgotten: whose parts they
// were was not known, and the bytes are in the traffic between the nodes.
func (o *Observer) learnParts(j *Job) {
	if o.opts.PartKeys == nil {
		return
	}
	news := o.opts.PartKeys(j.Scheduler, j.parts.known)
	if len(news) == 0 {
		return
	}
	j.parts.known += len(news)
	for _, r := range news {
		if r.First > r.Last {
			continue
		}
		j.Sums.Table.Forget(r.First, r.Last)
		j.parts.ranges = append(j.parts.ranges, r)
	}
	slices.SortFunc(j.parts.ranges, func(a, b PartRange) int { return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last)) })
	j.parts.ranges = joinRanges(j.parts.ranges)
}

// joinRanges joins neighbours and ranges that overlap and agree. Of ranges that do not agree, the one that begins
// later loses what the other has.
func joinRanges(ranges []PartRange) []PartRange {
	joined := ranges[:0]
	for _, r := range ranges {
		if n := len(joined); n > 0 && (r.First <= joined[n-1].Last || r.First == joined[n-1].Last+1) {
			last := &joined[n-1]
			if r.Last <= last.Last {
				continue
			}
			if r.Whole-r.First == last.Whole-last.First {
				last.Last = r.Last
				continue
			}
			if over := last.Last - r.First + 1; r.First <= last.Last {
				r.First, r.Whole = r.First+over, r.Whole+over
			}
		}
		joined = append(joined, r)
	}
	return joined
}

// find returns the first range that reaches to a key or beyond it.
func (p *partKeys) find(key uint64) (r PartRange, ok bool) {
	i, _ := slices.BinarySearchFunc(p.ranges, key, func(r PartRange, k uint64) int { return cmp.Compare(r.Last, k) })
	if i == len(p.ranges) {
		return r, false
	}
	return p.ranges[i], true
}

// wholeOf returns the key that a key is a part of, or the key.
func (p *partKeys) wholeOf(key uint64) uint64 {
	if r, ok := p.find(key); ok && r.First <= key {
		return r.Whole + (key - r.First)
	}
	return key
}

// wholeRun returns the keys that those of a run are parts of; isRun is false if they are no run.
func (p *partKeys) wholeRun(run counts.Run) (whole counts.Run, isRun bool) {
	r, ok := p.find(run.First)
	switch {
	case !ok || r.First > run.Last():
		return run, true
	case r.First <= run.First && run.Last() <= r.Last:
		run.First = r.Whole + (run.First - r.First)
		return run, true
	}
	return run, false
}

// touch reports whether a key of a list may be a part of another.
func (p *partKeys) touch(l *list) bool {
	if len(p.ranges) == 0 || l.len() == 0 {
		return false
	}
	for i := range l.pieces {
		run := &l.pieces[i].run
		if run.N == 0 {
			continue
		}
		if r, ok := p.find(run.First); ok && r.First <= run.Last() {
			return true
		}
	}
	return slices.ContainsFunc(l.keys, func(k uint64) bool { return p.wholeOf(k) != k })
}

// makeWhole replaces the part keys in a list by the keys that they are parts of.
func (p *partKeys) makeWhole(l *list) {
	if !p.touch(l) {
		return
	}
	whole := list{split: l.split, have: l.have}
	keys := l.keys
	for _, at := range l.pieces {
		run, isRun := p.wholeRun(at.run)
		switch {
		case at.run.N == 0:
			for _, k := range keys[:at.n] {
				whole.addKey(p.wholeOf(k))
			}
			keys = keys[at.n:]
		case isRun:
			whole.addRun(run, false)
		case at.run.N > heldKeys:
			whole.addRun(at.run, false) // as they are, rather than one by one
		default:
			for _, k := range at.run.Append(nil) {
				whole.addKey(p.wholeOf(k))
			}
		}
	}
	*l = whole
}

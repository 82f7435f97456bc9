// This file decides how densely the requests of each job are sampled: as densely as a budget of
// CPU time allows, but so that the keys of a whole step are seen every few seconds in any case.
//
// A [sampleController] takes a [sampleLook] once a second, with what was sampled so far and
// what that cost, and returns a [sampleDecision]. It is a pure state machine: it knows no clock
// and no kernel.
//
// The budget covers everything that watching costs, in the kernel and in the agent's process.
// Keys get what the rest leaves. The budget is a mean over [saving]: what is not used pays for
// denser sampling later, up to [burstTimes] the budget. So most of a job that begins, of which
// little is known, is sampled, and the budget is used up although rates are powers of two.

package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// span is the period over which cost and pace are measured. It must contain some sampled
	// windows.
	span = 12 * time.Second
	// stepEvery is the mean interval at which the keys of some steps are sampled whatever it
	// costs. At most twice as long passes between two of them.
	stepEvery = 3 * time.Second
	// A window is a number of consecutive timestamps whose keys are sampled together: as many
	// as pass in windowTakes, between minWindow and maxWindow. A window then holds a pull and
	// the push that follows it, while a job of few, large steps need not sample many of them in
	// a row.
	minWindow, maxWindow = 4, 16
	windowTakes          = 500 * time.Millisecond
	// maxOneIn is the sparsest sampling.
	maxOneIn = 4096
	// kernelNanosPerByte is what the BPF programs take to examine a byte of keys and copy it
	// out. bpf/README.md measures 55 to 70 ms per GB of traffic, three quarters of it keys, for
	// runs of keys.
	kernelNanosPerByte = 0.1
	// denser is the fraction of the budget that must suffice before a job is sampled more
	// densely. The margin keeps noisy measurements from making rates oscillate.
	denser = 0.8
	// saving is the period over which unused budget accumulates.
	saving = time.Minute
	// spendIn is how long the savings would last if they were spent evenly beside the whole
	// budget. Small savings are thus spent slowly, and rates change slowly.
	spendIn = 10 * time.Second
	// burstTimes is how many times the budget may be used for a while.
	burstTimes = 3
	// leastForKeys is the part of the budget that keys get although the rest takes all of it.
	leastForKeys = 0.1
	// maxRestOf is the shortest part of the time in which busy streams are watched.
	maxRestOf = 32
)

// A sampleRate means that one in OneIn windows of Window timestamps is sampled.
type sampleRate struct{ Window, OneIn uint32 }

// A sampleClock identifies a counter of timestamps in a job.
type sampleClock struct{ App, Customer int32 }

// sampleSeen are a job's totals so far.
type sampleSeen struct {
	Requests, Sampled uint64                // requests with keys, and those that were sampled
	KeyBytes          uint64                // bytes of keys that were copied
	AllBytes          uint64                // estimate of the bytes of all keys
	Clocks            map[sampleClock]int32 // highest timestamps
}

// A sampleLook is the agent's state at one moment. Everything but At only grows.
type sampleLook struct {
	At       time.Time
	KeyNanos int64         // CPU time spent on keys in user space
	Total    time.Duration // CPU time of the agent and its programs
	// Traffic is the part of Total that went into messages apart from their keys, and Whole what it
	// would have been without rests.
	Traffic, Whole time.Duration
	Jobs           map[string]sampleSeen
}

// A sampleDecision says how to sample from now on.
type sampleDecision struct {
	Jobs    map[string]sampledJob
	Percent float64 // of one core, that all watching takes
	// Over says that the budget cannot be met: some steps must be sampled, and the rest cannot be
	// left out.
	Over bool
	// RestOf says for which part of the time busy streams are watched: one in so many.
	RestOf uint32
}

// A sampledJob says how one job is sampled.
type sampledJob struct {
	sampleRate
	Percent float64 // of one core, that looking at its keys takes
	AtFloor bool    // it is not sampled more sparsely, whatever it costs
}

// A sampleController decides about sampling, over and over. The zero value with a Budget has
// seen nothing and has saved as much as can be saved. It is not safe for concurrent use.
type sampleController struct {
	Budget float64 // percent of one core, averaged over saving; 0: rates stay as Start says
	Start  uint32  // OneIn of a job until its keys were seen

	looks []sampleLook          // oldest first, those of the last span
	jobs  map[string]sampledJob // the previous decision
	taken time.Duration         // used up of the savings, from 0 to the budget of saving

	restOf uint32 // the previous decision; 0: none yet
	over   bool   // the previous decision
}

// Decide takes the present state and returns how to sample from now on.
//
// For each job it computes the sparsest rate that just meets what is allowed, and one that
// meets it with a margin; the present rate is kept if it lies between the two, which is the
// hysteresis.
func (c *sampleController) Decide(now sampleLook) sampleDecision {
	// Before the new look is appended: what is charged is the time since the previous one.
	if n := len(c.looks); n > 0 {
		c.pay(&c.looks[n-1], &now)
	}
	c.looks = append(c.looks, now)
	for len(c.looks) > 2 && now.At.Sub(c.looks[1].At) >= span {
		c.looks = slices.Delete(c.looks, 0, 1)
	}
	price := c.price()
	var all []demand
	for _, name := range slices.Sorted(maps.Keys(now.Jobs)) {
		d := c.demand(name, price)
		all = append(all, d)
	}
	decision := sampleDecision{Jobs: map[string]sampledJob{}, RestOf: c.restOf}
	other := c.other()
	c.restOf = c.rest(other)
	allowed := c.forKeys(c.allowed(), other)
	// least ignores the savings: whether the budget can be met is a question of the long run.
	sparse, dense, least := share(all, allowed), share(all, denser*allowed), share(all, c.forKeys(c.Budget, other))
	for i, d := range all {
		job := sampledJob{sampleRate: sampleRate{Window: d.window, OneIn: d.oneIn}, Percent: d.percent}
		if c.Budget > 0 {
			job.OneIn = min(d.oneIn, d.limit)
			if d.known { // between what suffices and what leaves a margin
				job.OneIn = min(max(job.OneIn, sparse[i]), dense[i])
			}
			// maxOneIn is a bound of its own, not a floor that the job's pace sets.
			job.AtFloor = d.known && sparse[i] == d.limit && d.limit < maxOneIn
		}
		decision.Jobs[d.name] = job
		decision.Percent += d.percent
	}
	decision.Percent += other
	// What else takes much for a moment, such as a start, is paid from the savings. Once they are
	// used up, the budget is met again only when some of them are back.
	spent, needs := c.taken >= c.budgetOf(saving), total(all, least)
	c.over = c.Budget > 0 && (needs > c.Budget || spent && needs+other > c.Budget || c.over && c.taken > c.budgetOf(saving*3/4))
	decision.Over = c.over
	c.jobs = decision.Jobs
	return decision
}

// pay charges what watching has cost since the last look against the budget of that time, and
// the difference against the savings.
func (c *sampleController) pay(before, now *sampleLook) {
	keys, other := spentBetween(before, now)
	c.taken = min(max(c.taken+keys+other-c.budgetOf(now.At.Sub(before.At)), 0), c.budgetOf(saving))
}

// spentBetween returns what keys, and everything else, have cost between two looks.
func spentBetween(before, now *sampleLook) (keys, other time.Duration) {
	bytes := uint64(0)
	for name, j := range now.Jobs {
		bytes += less(j.KeyBytes, before.Jobs[name].KeyBytes)
	}
	// The kernel's part is estimated by bytes, since the time of a program run is not told
	// apart by what the run did.
	keys = time.Duration(now.KeyNanos-before.KeyNanos) + time.Duration(kernelNanosPerByte*float64(bytes))
	return keys, max(now.Total-before.Total-keys, 0)
}

// other returns what everything but keys has taken over span, in percent of one core.
func (c *sampleController) other() float64 {
	first, last := &c.looks[0], &c.looks[len(c.looks)-1]
	took := last.At.Sub(first.At)
	if took <= 0 {
		return 0
	}
	_, other := spentBetween(first, last)
	return 100 * float64(other) / float64(took)
}

// rest decides for which part of the time busy streams are watched: for as much as what is allowed
// leaves for messages beside the least for keys. As with rates, the previous decision stays while
// it is between what suffices and what leaves a margin.
func (c *sampleController) rest(other float64) uint32 {
	first, last := &c.looks[0], &c.looks[len(c.looks)-1]
	took := float64(last.At.Sub(first.At))
	if c.Budget <= 0 || took <= 0 {
		return max(c.restOf, 1)
	}
	traffic, whole := 100*float64(last.Traffic-first.Traffic)/took, 100*float64(last.Whole-first.Whole)/took
	of := func(allowed float64) uint32 {
		n := uint32(1)
		for n < maxRestOf && whole/float64(n) > allowed-(other-traffic)-leastForKeys*c.Budget {
			n *= 2
		}
		return n
	}
	return min(max(c.restOf, of(c.allowed())), of(denser*c.allowed()))
}

// forKeys returns what is left for keys of a budget.
func (c *sampleController) forKeys(budget, other float64) float64 {
	return max(budget-other, leastForKeys*c.Budget)
}

// budgetOf returns the CPU time that the budget allows in a period.
func (c *sampleController) budgetOf(t time.Duration) time.Duration {
	return time.Duration(c.Budget / 100 * float64(t))
}

// allowed returns what watching may cost now, in percent of one core: the budget and a part of
// the savings.
func (c *sampleController) allowed() float64 {
	return min(c.Budget+100*float64(c.budgetOf(saving)-c.taken)/float64(spendIn), burstTimes*c.Budget)
}

// price returns the cost of a byte of sampled keys in nanoseconds, averaged over span and all
// jobs.
func (c *sampleController) price() float64 {
	first, last := c.looks[0], c.looks[len(c.looks)-1]
	bytes := uint64(0)
	for name, j := range last.Jobs {
		bytes += less(j.KeyBytes, first.Jobs[name].KeyBytes)
	}
	// Nothing was sampled lately. The kernel's part is a lower bound, so the first estimate is
	// dense.
	if bytes == 0 {
		return kernelNanosPerByte
	}
	return kernelNanosPerByte + float64(last.KeyNanos-first.KeyNanos)/float64(bytes)
}

// demand is what a job would cost, and how sparsely it can be sampled.
type demand struct {
	name    string
	whole   float64 // percent of a core if all of its keys were sampled
	percent float64 // percent of a core that it costs now
	known   bool    // keys were sampled lately, so whole is known
	window  uint32
	oneIn   uint32 // the present rate
	limit   uint32 // the sparsest rate with which a step is sampled every stepEvery
}

// demand computes a job's demand from the looks that know the job.
func (c *sampleController) demand(name string, price float64) demand {
	now := c.looks[len(c.looks)-1]
	seen := now.Jobs[name]
	d := demand{name: name, oneIn: max(c.Start, 1), window: maxWindow}
	before, met := c.jobs[name]
	if met {
		d.oneIn, d.window = before.OneIn, before.Window
	}
	// A job of unknown pace is not sampled more sparsely, or steps of a slow one could be
	// missed.
	d.limit = d.oneIn // until its pace is known
	at := slices.IndexFunc(c.looks, func(l sampleLook) bool { _, ok := l.Jobs[name]; return ok })
	first := c.looks[at]
	seconds := now.At.Sub(first.At).Seconds()
	if seconds <= 0 {
		return d
	}
	was := first.Jobs[name]
	d.known = seen.Sampled > was.Sampled
	d.percent = 100 * price * 1e-9 * float64(less(seen.KeyBytes, was.KeyBytes)) / seconds
	d.whole = 100 * price * 1e-9 * float64(less(seen.AllBytes, was.AllBytes)) / seconds
	pace := c.pace(name)
	// After half of span without a new timestamp, the job is slow rather than new.
	if c.Budget > 0 && (pace > 0 || seconds >= span.Seconds()/2) {
		d.window = min(max(powerBelow(pace*windowTakes.Seconds()), minWindow), maxWindow)
		d.limit = min(powerBelow(pace*stepEvery.Seconds()/float64(d.window)), maxOneIn)
	}
	return d
}

// pace returns the number of timestamps a second, of the customer with the most.
func (c *sampleController) pace(name string) (pace float64) {
	now := c.looks[len(c.looks)-1]
	for clock, highest := range now.Jobs[name].Clocks {
		for _, l := range c.looks { // the first that knows it
			from, ok := l.Jobs[name].Clocks[clock]
			if seconds := now.At.Sub(l.At).Seconds(); ok && seconds > 0 {
				pace = max(pace, float64(int64(highest)-int64(from))/seconds)
			}
			if ok {
				break
			}
		}
	}
	return pace
}

// share returns a rate for each demand such that all together stay within the budget, if that
// is possible. The largest cost is halved until they do. A job that costs no more than an equal
// part of the budget, not counting idle jobs, is always sampled in full: the excess then comes
// from steps of other jobs that must be sampled, and sampling small jobs more sparsely would
// save next to nothing and spoil their few counts.
func share(all []demand, budget float64) []uint32 {
	oneIn := make([]uint32, len(all))
	for i := range oneIn {
		oneIn[i] = 1
	}
	active := 0
	for _, d := range all {
		if d.whole > 0 {
			active++
		}
	}
	part := budget / float64(max(active, 1))
	for total(all, oneIn) > budget {
		most := -1
		for i, d := range all {
			takes := d.whole / float64(oneIn[i])
			if oneIn[i] < d.limit && takes > part && (most < 0 || cmp.Less(all[most].whole/float64(oneIn[most]), takes)) {
				most = i
			}
		}
		if most < 0 {
			break
		}
		// SetRate takes powers of two only. A denser rate then includes every window of a
		// sparser one.
		oneIn[most] *= 2
	}
	return oneIn
}

// total returns the cost of all demands at these rates.
func total(all []demand, oneIn []uint32) (percent float64) {
	for i, d := range all {
		percent += d.whole / float64(oneIn[i])
	}
	return percent
}

// powerBelow returns the largest power of two that is at most x, but at least 1.
func powerBelow(x float64) uint32 {
	n := uint32(1)
	for n < 1<<30 && float64(2*n) <= x {
		n *= 2
	}
	return n
}

// less returns a-b, or 0 if a counter started over.
func less(a, b uint64) uint64 { return a - min(a, b) }

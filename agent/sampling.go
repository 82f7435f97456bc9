// This part decides of how many requests of each job the keys are looked
// at: as many as a budget of CPU time allows, but those of a whole step every
// few seconds in any case.
//
// In comes what was looked at so far and what that took ([sampleLook]), once a second;
// out goes a [sampleDecision]. The agent calls it. It knows no clock and no kernel.
//
// The budget is for what sampling can lower: copying key frames out of the
// kernel and counting them. What each segment and each meta costs, and what the
// rest of the process does, is not held against it. It is a mean over [saving]:
// what was not used of it pays for denser sampling later, so that of a job that
// begins, of which little is known, most is looked at, and so that the budget is
// used up between two rates, which are powers of two.

package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// span is how far back cost and pace are measured. It must hold some sampled
	// windows.
	span = 12 * time.Second
	// stepEvery is how often the keys of some steps are looked at whatever that
	// takes, on average; at most twice as long passes from one to the next.
	stepEvery = 3 * time.Second
	// A window is a number of consecutive timestamps whose keys are sampled
	// together: as many as pass in windowTakes, within these limits, so that a
	// window holds a pull and the push that follows it, and a job of few, large
	// steps does not have to sample many of them at once.
	minWindow, maxWindow = 4, 16
	windowTakes          = 500 * time.Millisecond
	// maxOneIn is the sparsest sampling.
	maxOneIn = 4096
	// kernelNanosPerByte is what the programs in the kernel take to look at a
	// byte of keys and copy it out: see bpf/README.md, which has 55 to 70 ms a
	// GB of traffic, three quarters of it keys, for runs of keys.
	kernelNanosPerByte = 0.1
	// denser is the part of the budget that must suffice before a job is sampled
	// more densely; the margin keeps noisy measurements from making rates
	// oscillate.
	denser = 0.8
	// saving is for how long what the budget allows and nobody takes is saved.
	saving = time.Minute
	// spendIn is how long the savings would last if the whole budget were used
	// beside them: small savings are spent slowly, so that rates change slowly.
	spendIn = 10 * time.Second
)

// A sampleRate says that one in OneIn windows of Window timestamps is sampled.
type sampleRate struct{ Window, OneIn uint32 }

// A sampleClock names a counter of timestamps of a job.
type sampleClock struct{ App, Customer int32 }

// sampleSeen is what has passed of a job so far.
type sampleSeen struct {
	Requests, Sampled uint64                // requests with keys, and those looked at
	KeyBytes          uint64                // of keys that were looked at
	AllBytes          uint64                // what they would be had all been looked at
	Clocks            map[sampleClock]int32 // highest timestamps
}

// A sampleLook is the state of the agent at one moment. All but At only grow.
type sampleLook struct {
	At       time.Time
	KeyNanos int64 // CPU time that went into copied keys in user space
	Jobs     map[string]sampleSeen
}

// A sampleDecision is how to sample from now on.
type sampleDecision struct {
	Jobs    map[string]sampledJob
	Percent float64 // of one core, that looking at keys takes
	// Over: the budget cannot be met, since steps must be looked at.
	Over bool
}

// A sampledJob is how one job is sampled.
type sampledJob struct {
	sampleRate
	Percent float64 // of one core, that looking at its keys takes
	AtFloor bool    // sparser it does not get, whatever it takes
}

// A sampleController decides again and again. The zero value but for Budget is one
// that has seen nothing, and has saved all that can be.
type sampleController struct {
	Budget float64 // percent of one core, over Saving; 0: rates are left as Start says
	Start  uint32  // OneIn of a job of which no keys have been seen

	looks []sampleLook // oldest first, those of the last span
	jobs  map[string]sampledJob
	taken time.Duration // of what was saved: from 0 to the budget of Saving
}

// Decide takes what has been seen by now.
func (c *sampleController) Decide(now sampleLook) sampleDecision {
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
	decision := sampleDecision{Jobs: map[string]sampledJob{}}
	allowed := c.allowed()
	sparse, dense, least := share(all, allowed), share(all, denser*allowed), share(all, c.Budget)
	for i, d := range all {
		job := sampledJob{sampleRate: sampleRate{Window: d.window, OneIn: d.oneIn}, Percent: d.percent}
		if c.Budget > 0 {
			job.OneIn = min(d.oneIn, d.limit)
			if d.known { // between what suffices and what leaves room
				job.OneIn = min(max(job.OneIn, sparse[i]), dense[i])
			}
			job.AtFloor = d.known && sparse[i] == d.limit && d.limit < maxOneIn
		}
		decision.Jobs[d.name] = job
		decision.Percent += d.percent
	}
	decision.Over = c.Budget > 0 && total(all, least) > c.Budget
	c.jobs = decision.Jobs
	return decision
}

// pay takes from what was saved what looking at keys took from one look to the next,
// beyond the budget, or adds what it left of that.
func (c *sampleController) pay(before, now *sampleLook) {
	bytes := uint64(0)
	for name, j := range now.Jobs {
		bytes += less(j.KeyBytes, before.Jobs[name].KeyBytes)
	}
	took := time.Duration(now.KeyNanos-before.KeyNanos) + time.Duration(kernelNanosPerByte*float64(bytes))
	c.taken = min(max(c.taken+took-c.budgetOf(now.At.Sub(before.At)), 0), c.budgetOf(saving))
}

// budgetOf is the CPU time that the budget allows in a stretch of time.
func (c *sampleController) budgetOf(t time.Duration) time.Duration {
	return time.Duration(c.Budget / 100 * float64(t))
}

// allowed is what looking at keys may take now: the budget and some of what was
// saved, in percent of one core.
func (c *sampleController) allowed() float64 {
	return c.Budget + 100*float64(c.budgetOf(saving)-c.taken)/float64(spendIn)
}

// price returns nanoseconds a byte of keys that is looked at.
func (c *sampleController) price() float64 {
	first, last := c.looks[0], c.looks[len(c.looks)-1]
	bytes := uint64(0)
	for name, j := range last.Jobs {
		bytes += less(j.KeyBytes, first.Jobs[name].KeyBytes)
	}
	if bytes == 0 {
		return kernelNanosPerByte
	}
	return kernelNanosPerByte + float64(last.KeyNanos-first.KeyNanos)/float64(bytes)
}

// demand is what a job asks for.
type demand struct {
	name    string
	whole   float64 // percent of a core that looking at all of its keys would take
	percent float64 // that looking at them takes
	known   bool    // keys were looked at lately, so that whole is known
	window  uint32
	oneIn   uint32 // now
	limit   uint32 // the sparsest with which a step is looked at every stepEvery
}

func (c *sampleController) demand(name string, price float64) demand {
	now := c.looks[len(c.looks)-1]
	seen := now.Jobs[name]
	d := demand{name: name, oneIn: max(c.Start, 1), window: maxWindow}
	before, met := c.jobs[name]
	if met {
		d.oneIn, d.window = before.OneIn, before.Window
	}
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
	if c.Budget > 0 && (pace > 0 || seconds >= span.Seconds()/2) {
		d.window = min(max(powerBelow(pace*windowTakes.Seconds()), minWindow), maxWindow)
		d.limit = min(powerBelow(pace*stepEvery.Seconds()/float64(d.window)), maxOneIn)
	}
	return d
}

// pace returns how many timestamps pass in a second: those of the customer that
// has most.
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

// share returns for each demand how sparsely it is met so that all together stay
// within the budget, if that is possible; the largest demand gives up most. A job
// that takes no more than an equal part of the budget, idle jobs aside, gives up
// nothing: the excess then comes from steps of others that must be sampled, and
// taking it from small jobs would save next to nothing and spoil their few counts.
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
		oneIn[most] *= 2
	}
	return oneIn
}

func total(all []demand, oneIn []uint32) (percent float64) {
	for i, d := range all {
		percent += d.whole / float64(oneIn[i])
	}
	return percent
}

// powerBelow returns the highest power of two that is at most x, and at least 1.
func powerBelow(x float64) uint32 {
	n := uint32(1)
	for n < 1<<30 && float64(2*n) <= x {
		n *= 2
	}
	return n
}

func less(a, b uint64) uint64 { return a - min(a, b) }

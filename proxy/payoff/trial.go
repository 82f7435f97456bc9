package payoff

import (
	"sync"
	"time"
)

// Trial finds out whether a job is faster with a measure or without it, where that cannot be
// computed: in turns the measure is on and off, and the way in which the job does more of its work per
// second is kept for a while. What work is, messages, answers or bytes, is up to the caller.
//
// A Trial has no clock: the time is passed to it. A new one has the measure on, and a nil one always. It
// is safe for concurrent use. Its fields are set before the first use.
type Trial struct {
	// Among has the other trials of the job, which do not begin while this one is under way; nil:
	// there are none.
	Among *Trials
	// Least is how much work a turn has at least; 0: 64.
	Least int

	mu      sync.Mutex    // guards the rest; before Trials.mu
	off     bool          // the last verdict
	turn    int           // of the current trial, from 1; 0: there is none
	first   time.Time     // when the trial began
	began   time.Time     // of this turn; zero: it begins with the next step
	last    time.Time     // of the last step
	longest time.Duration // between two steps of this turn
	pause   time.Duration // the longest since the last trial
	work    int           // in this turn
	slower  bool          // the job was, with the measure, in the last round
	length  time.Duration // of turns; 0: turnTime
	uses    int           // in this turn or, between trials, since the last one
	pace    [2]float64    // seconds per unit of work in the last turns, without the measure and with it
	period  time.Duration
	figures Verdict
}

// Verdict is the outcome of trials.
type Verdict struct {
	Trials        int     // as far as there was one
	With, Without float64 // work per second in the last round
}

const (
	// rounds is the number of turns each way. All rounds have to agree, and they begin with either way.
	rounds = 3
	// gain is by which factor the job has to be faster without the measure.
	gain = 1.05
	// A turn lasts for turnTime, and for Trial.Least. Where rounds have not agreed, since they are short
	// for the rhythm of the job, the next ones last twice as long, up to longTurn. After turnMost a trial
	// ends: the job does something else.
	turnTime, longTurn, turnMost = time.Second, 16 * time.Second, 2 * time.Minute
	leastWork                    = 64
	// minor is how many times longer than a pause of the job a turn is that need not end with one.
	minor = 16
	// worst is the factor by which work may take longer in the way that is tried before the trial is
	// broken off.
	worst = 2
	// rest is how much longer than a trial the time to the next one is.
	rest = 4
	// leastUses is how often the measure must have been used for a trial to begin, and in each of its turns:
	// otherwise there is nothing to lose.
	leastUses = 4
	// Trials begin when the clock shows a multiple of the period, which doubles each time that the
	// verdict is confirmed. So the hosts of a job, which wait for each other, try at the same time,
	// also where their periods differ: one that tries alone sees little of what all would gain.
	leastPeriod, mostPeriod = 15 * time.Second, 16 * time.Minute
	// silence is the time without a step after which a job is taken to be over.
	silence = 10 * time.Second
)

// On reports whether the measure is on now.
func (t *Trial) On() bool {
	if t == nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isOn()
}

// isOn is On; the caller holds mu, as of all that follow.
func (t *Trial) isOn() bool { return t.off == t.tries() }

// tries reports whether this turn is of the other way than the last verdict's.
func (t *Trial) tries() bool { return t.turn%4 == 2 || t.turn%4 == 3 }

// UnderWay reports whether a trial is.
func (t *Trial) UnderWay() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.turn > 0
}

// Verdict returns the last one.
func (t *Trial) Verdict() Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.figures
}

// Use notes that the measure was used n times.
func (t *Trial) Use(n int) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.uses += n
}

// Step notes work that is done. worth says whether a trial is worth its cost, while the measure is on.
func (t *Trial) Step(now time.Time, work int, worth bool) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last, gap := t.last, now.Sub(t.last)
	t.last = now
	if gap < silence {
		if t.turn > 0 && gap > 2*max(t.pause, turnTime/minor) {
			t.turn, t.began = 1, time.Time{} // its turns so far may have been amid steps
		}
		t.pause = max(t.pause, gap)
	}
	switch took := now.Sub(t.began); {
	case t.turn == 0:
		due := now.Truncate(max(t.period, leastPeriod)).After(last)
		if due && (t.off || worth && t.uses >= leastUses) && t.Among.take(t, now) {
			t.turn, t.first = 1, now
		}
	case !t.Among.take(t, now):
		t.stop() // this job was silent for long, and another trial has begun
	case t.began.IsZero(): // what was in flight when the turn changed is done
		if t.turn == 1 && t.amid(gap, now.Sub(t.first)) {
			return
		}
		t.began, t.work, t.uses, t.longest = now, 0, 0, 0
	case took > turnMost:
		t.stop()
	default:
		t.work += work
		t.longest = max(t.longest, gap)
		t.judge(took, gap)
	}
}

// amid reports whether the job is amid a step of its own, after which it will pause, gap after the step of
// work before. A turn is one of whole steps: otherwise what differs may be the number of pauses.
func (t *Trial) amid(gap, took time.Duration) bool {
	return gap < t.pause/2 && took < min(minor*t.pause, turnMost/2)
}

// judge checks whether a turn is over, and what follows.
func (t *Trial) judge(took, gap time.Duration) {
	least := t.Least
	if least == 0 {
		least = leastWork
	}
	// The job should not suffer until the turn's end. The longest step may have been a pause of the job's.
	if spent := took - t.longest; t.tries() && spent > worst*turnTime && spent.Seconds() > worst*t.pace[way(!t.off)]*float64(max(t.work, least/4)) {
		t.decide(t.off)
		return
	}
	if took < max(t.length, turnTime) || t.work < least || t.amid(gap, took) {
		return
	}
	if t.isOn() && t.uses < leastUses {
		t.decide(false)
		return
	}
	t.pace[way(t.isOn())] = took.Seconds() / float64(t.work)
	t.began = time.Time{}
	if t.turn++; t.turn%2 == 0 {
		return
	}
	slower := t.pace[way(true)] > gain*t.pace[way(false)]
	switch {
	case t.turn > 3 && slower != t.slower:
		t.length = min(2*max(t.length, turnTime), longTurn)
		t.stop()
	case t.turn > 2*rounds:
		t.figures = Verdict{t.figures.Trials + 1, 1 / t.pace[way(true)], 1 / t.pace[way(false)]}
		t.decide(slower)
	}
	t.slower = slower
}

// way is an index of Trial.pace.
func way(on bool) int {
	if on {
		return 1
	}
	return 0
}

// decide ends the trial, if one is under way, with a verdict.
func (t *Trial) decide(off bool) {
	if t.period *= 2; off != t.off {
		t.period = 0
	}
	t.off = off
	t.stop()
}

// stop ends the trial, if one is under way.
func (t *Trial) stop() {
	t.period = max(t.period, leastPeriod)
	for t.turn > 0 && t.period < rest*t.last.Sub(t.first) {
		t.period *= 2
	}
	t.period = min(t.period, mostPeriod)
	t.turn, t.began, t.uses, t.pause = 0, time.Time{}, 0, 0
	t.Among.giveBack(t)
}

// Settle has the measure on without a trial: it is known to pay.
func (t *Trial) Settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.off {
		t.decide(false)
	}
}

// Forget leaves nothing of the verdict and of a trial.
func (t *Trial) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.decide(false)
	t.period, t.length = 0, 0
}

// Trials has at most one Trial under way at a time: none can tell what it has changed from what another
// has. The zero value is ready for concurrent use.
type Trials struct {
	mu    sync.Mutex // guards the rest
	trial *Trial     // nil: none is under way
	until time.Time  // another may begin then
}

// take reports whether a trial may begin, or go on.
func (a *Trials) take(t *Trial, now time.Time) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.trial != nil && a.trial != t && now.Before(a.until) {
		return false
	}
	a.trial, a.until = t, now.Add(silence)
	return true
}

// giveBack notes that a trial is not under way.
func (a *Trials) giveBack(t *Trial) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.trial == t {
		a.trial = nil
	}
}

package aggregate

import (
	"sync"
	"time"
)

// trial finds out whether a job's pushes are answered sooner summed or one by one. A carried
// push waits for the answer to its carrier's, and a sum for a link, or on purpose, which may
// cost a job more than the bytes that it saves. The effect is measured and not computed: in
// turns pushes are summed and are not, and the better way is kept for a while.
//
// A trial has no clock: the caller passes the time. A nil trial always sums; a new one begins
// with sums.
type trial struct {
	mu sync.Mutex // guards the rest

	off     bool      // the last verdict: pushes go one by one
	turn    int       // of the current trial, from 1; 0: there is none
	began   time.Time // of this turn; zero: it begins with the next answer
	answers int       // to pushes in this turn
	summed  int       // sums in this turn or, between trials, since the last one
	host    [rounds]float64
	single  [rounds]float64 // seconds per answer, of the turns so far
	until   time.Time       // no trial before
	hold    time.Duration   // how long the last verdict was kept
}

const (
	// rounds is the number of turns of a trial with sums, and of those without.
	rounds = 3
	// A turn lasts for at least turnAnswers answers and turnTime.
	turnAnswers = 64
	turnTime    = time.Second
	// turnMost bounds a turn. If it takes longer the job is doing something else, and the
	// trial ends without a verdict.
	turnMost = 2 * time.Minute
	// gain is by which factor answers to summed pushes must take longer, in every round, for
	// pushes to go one by one.
	gain = 1.1
	// worst is the factor by which answers may take longer the other way before the trial is
	// broken off.
	worst = 2
	// leastSums is the number of sums that there must be for a trial to begin, and in each of
	// its turns: where links are never busy nothing is summed, and nothing lost.
	leastSums = 4
	// A verdict is kept for leastHold, and for twice as long each time that it is confirmed,
	// up to mostHold.
	leastHold, mostHold = 30 * time.Second, 16 * time.Minute
)

// isOff reports whether pushes go one by one now.
func (t *trial) isOff() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.goesSingly()
}

// goesSingly is isOff; the caller holds t.mu.
func (t *trial) goesSingly() bool {
	if t.turn > 0 {
		return (t.turn%2 == 0) != t.off // the verdict before is tried first
	}
	return t.off
}

// sums notes that a push went with others' values in it.
func (t *trial) sums() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.summed++
}

// answered notes that a server has answered a push.
func (t *trial) answered(now time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch took := now.Sub(t.began); {
	case t.turn == 0:
		if !now.Before(t.until) && (t.off || t.summed >= leastSums) {
			t.turn, t.began = 1, time.Time{}
		}
	case t.began.IsZero():
		t.began, t.answers, t.summed = now, 0, 0
	case took > turnMost:
		t.decide(now, t.off)
	default:
		t.answers++
		t.judge(now, took)
	}
}

// judge checks whether a turn is over, and what follows.
func (t *trial) judge(now time.Time, took time.Duration) {
	round, singly := (t.turn-1)/2, t.goesSingly()
	mine, other := &t.host[round], &t.single[round]
	if singly {
		mine, other = other, mine
	}
	// The way that is tried is clearly worse: the job should not suffer from it until the
	// turn's end.
	if t.turn%2 == 0 && took > worst*turnTime && took.Seconds() > worst**other*float64(max(t.answers, turnAnswers)) {
		t.decide(now, t.off)
		return
	}
	if t.answers < turnAnswers || took < turnTime {
		return
	}
	if !singly && t.summed < leastSums {
		t.decide(now, false) // there is nothing to lose
		return
	}
	*mine = took.Seconds() / float64(t.answers)
	if t.began = (time.Time{}); t.turn < 2*rounds {
		t.turn++
		return
	}
	// All rounds must agree, so that one that was disturbed does not decide.
	slower := true
	for i := range rounds {
		slower = slower && t.host[i] > gain*t.single[i]
	}
	t.decide(now, slower)
}

// decide ends the trial with a verdict.
func (t *trial) decide(now time.Time, off bool) {
	if off != t.off {
		t.hold = 0
	}
	t.hold = min(max(2*t.hold, leastHold), mostHold)
	t.off, t.turn, t.began, t.answers, t.summed, t.until = off, 0, time.Time{}, 0, 0, now.Add(t.hold)
}

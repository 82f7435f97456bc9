package payoff

import (
	"sync/atomic"
	"time"
)

// Load finds out whether a host whose processors are busy, or whose proxy is throttled by a CPU limit,
// is better off when its messages pass as they are. A [Meter] cannot tell: where processors are what
// the job waits for, round trips take as long as on a slow link, and what encoding costs the job is
// more than its own time. So it is measured: in turns messages are encoded and pass, and the way in
// which the job sends more of them is kept for a while.
//
// A Load has no clock and reads no counters: [Load.Tick] is passed a [Usage] a few times per
// second while messages are sent, by one goroutine. The rest may be called by any. The zero Load
// encodes.
//
//	encodes ──trial shows a gain──► passes ──trial, free processors or silence──► encodes
//
// A process that passes messages is no longer throttled, so it goes on by trials alone.
type Load struct {
	off      atomic.Bool   // messages pass now
	messages atomic.Uint64 // sent so far, either way

	// Of the goroutine that calls Tick.
	last    Usage
	busy    int // ticks in succession at which a trial was worth while
	free    int // ticks in succession at which processors were free
	verdict bool
	// limited is set if the current trial, or the one that led to the verdict, began because the process
	// was throttled. What processors are idle then says nothing.
	limited bool
	turn    int           // of the current trial, from 1; 0: there is none
	began   time.Time     // of this turn; zero: it begins at the next tick
	before  uint64        // messages when it began
	rate    float64       // messages per second in the turn before
	period  time.Duration // of trials; 0: leastPeriod

	figures atomic.Pointer[LoadFigures]
}

// Usage is what a host's processors did in the time before it was taken.
type Usage struct {
	At   time.Time
	Idle float64 // share of the host's processors that did nothing
	Own  float64 // share that this process has used
	// Throttled is for how much of the time this process, or another one of its cgroup, had to wait
	// because of the cgroup's CPU limit; it may exceed 1 if it waited on several processors.
	Throttled float64
}

// LoadFigures are a [Load]'s decision and its reasons.
type LoadFigures struct {
	Passes bool `json:"passes"` // messages pass, since the host's processors are busy
	Trials int  `json:"trials"`
	// Messages per second in the last round of the last trial, encoded and as they are.
	Encoded float64 `json:"encoded_per_second"`
	Plain   float64 `json:"plain_per_second"`
}

const (
	// A trial begins where the host's processors are idle for less than busyIdle, and encoding
	// can matter: this process uses ownShare or more of them. Where they are idle for more than
	// freeIdle the job waits for the link, and messages are encoded again without a trial.
	busyIdle, freeIdle = 0.15, 0.3
	ownShare           = 0.05
	// throttledShare is how much a process has to be throttled for a trial; see Usage.
	throttledShare = 0.05
	// steady is the number of ticks in succession at which that has to hold.
	steady = 8
	// rounds is the number of turns each way; all of them have to show the gain.
	rounds = 2
	// gain is by which factor more messages have to be sent the other way.
	gain = 1.05
	// A turn lasts for turnTime, and until turnMessages were sent. After turnMost the trial ends
	// without a verdict: the job is too slow for turns to be compared.
	turnTime     = time.Second
	turnMessages = 100
	turnMost     = 5 * time.Second
	// Trials begin when the clock shows a multiple of the period, which doubles each time that the
	// verdict is confirmed. So the hosts of a job, which wait for each other, try at the same time,
	// also where their periods differ: one that tries alone sees little of what all would gain.
	leastPeriod, mostPeriod = 15 * time.Second, 16 * time.Minute
	// silence is the time without a call of Tick after which all is forgotten: what sends next may
	// be another job.
	silence = 10 * time.Second
)

// Sent counts a message, encoded or not. A nil Load does nothing.
func (l *Load) Sent() {
	if l != nil {
		l.messages.Add(1)
	}
}

// Messages returns how many messages were sent.
func (l *Load) Messages() uint64 { return l.messages.Load() }

// Passes reports whether messages pass as they are, since the host's processors are busy. Those of
// a nil Load do not.
func (l *Load) Passes() bool { return l != nil && l.off.Load() }

// Figures returns the last verdict; nil before there was one.
func (l *Load) Figures() *LoadFigures {
	if l == nil {
		return nil
	}
	return l.figures.Load()
}

// Tick takes the usage since the last call. Calls have to be well below turnTime apart.
func (l *Load) Tick(u Usage) {
	last := l.last
	l.last = u
	if u.At.Sub(last.At) > silence {
		l.forget()
	}
	throttled := u.Throttled >= throttledShare
	l.busy = succeed(l.busy, u.Idle < busyIdle && (l.verdict || u.Own >= ownShare) || throttled || l.limited)
	l.free = succeed(l.free, u.Idle > freeIdle && !throttled && !l.limited)
	switch sent := l.messages.Load(); {
	case l.turn == 0 && l.verdict && l.free >= steady:
		l.decide(false)
	case l.turn == 0:
		if l.busy >= steady && u.At.Truncate(max(l.period, leastPeriod)).After(last.At) {
			l.turn, l.limited = 1, l.limited || throttled
		}
	case l.began.IsZero(): // what was in flight when the turn changed is gone
		l.began, l.before = u.At, sent
	case u.At.Sub(l.began) > turnMost:
		l.decide(l.verdict)
	default:
		l.judge(u.At.Sub(l.began), sent-l.before)
	}
	// In odd turns the verdict before holds, in even ones the opposite.
	l.off.Store(l.verdict != (l.turn > 0 && l.turn%2 == 0))
}

// forget leaves nothing of the verdict and of a trial.
func (l *Load) forget() {
	l.busy, l.free = 0, 0
	l.decide(false)
	l.period = 0
}

// succeed counts ticks in succession.
func succeed(n int, holds bool) int {
	if !holds {
		return 0
	}
	return n + 1
}

// judge checks whether a turn is over, and what follows.
func (l *Load) judge(took time.Duration, sent uint64) {
	if took < turnTime || sent < turnMessages {
		return
	}
	rate := float64(sent) / took.Seconds()
	before := l.rate
	l.rate, l.began = rate, time.Time{}
	if l.turn%2 == 1 {
		l.turn++
		return
	}
	f := &LoadFigures{Encoded: before, Plain: rate, Trials: 1}
	if l.verdict {
		f.Encoded, f.Plain = rate, before
	}
	if last := l.figures.Load(); last != nil {
		f.Trials += last.Trials
	}
	better := rate > gain*before
	f.Passes = l.verdict != (better && l.turn == 2*rounds)
	if better && l.turn < 2*rounds {
		l.turn++
		return
	}
	l.figures.Store(f)
	// One round without a gain suffices to leave things as they are: the job should not suffer
	// from the rest.
	l.decide(f.Passes)
}

// decide ends the trial with a verdict.
func (l *Load) decide(passes bool) {
	if passes == l.verdict {
		l.period = min(2*max(l.period, leastPeriod), mostPeriod)
	} else {
		l.period = leastPeriod
	}
	l.verdict, l.turn, l.began = passes, 0, time.Time{}
	l.limited = l.limited && passes
	if f := l.figures.Load(); f != nil && f.Passes != passes {
		next := *f
		next.Passes = passes
		l.figures.Store(&next)
	}
}

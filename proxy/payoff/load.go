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
	Trial Trial // Among may be set before the first use

	off      atomic.Bool   // messages pass now
	messages atomic.Uint64 // sent so far, either way

	// Of the goroutine that calls Tick.
	last Usage
	sent uint64 // messages at the last tick
	busy int    // ticks in succession at which a trial was worth while
	free int    // ticks in succession at which processors were free
	// limited is set if the process was throttled when the current trial began, or the one that led to
	// the verdict. What processors are idle then says nothing.
	limited bool

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

// Tick takes the usage since the last call. Calls have to be well below a second apart. After a silence
// all is forgotten: what sends next may be another job.
func (l *Load) Tick(u Usage) {
	if u.At.Sub(l.last.At) > silence {
		l.busy, l.free = 0, 0
		l.Trial.Forget()
	}
	l.last = u
	throttled := u.Throttled >= throttledShare
	passes, trying := l.Passes(), l.Trial.UnderWay()
	if !passes && !trying {
		l.limited = throttled
	}
	l.busy = succeed(l.busy, u.Idle < busyIdle && u.Own >= ownShare || throttled)
	if l.free = succeed(l.free, u.Idle > freeIdle && !l.limited); l.free >= steady && !trying {
		l.Trial.Settle()
	}
	sent := l.messages.Load()
	work := int(sent - l.sent)
	if l.sent = sent; !passes {
		l.Trial.Use(work)
	}
	l.Trial.Step(u.At, work, l.busy >= steady)
	l.off.Store(!l.Trial.On())
	v := l.Trial.Verdict()
	if f := l.figures.Load(); v.Trials > 0 && !l.Trial.UnderWay() && (f == nil || f.Trials != v.Trials || f.Passes != l.Passes()) {
		l.figures.Store(&LoadFigures{Passes: l.Passes(), Trials: v.Trials, Encoded: v.With, Plain: v.Without})
	}
}

// succeed counts ticks in succession.
func succeed(n int, holds bool) int {
	if !holds {
		return 0
	}
	return n + 1
}

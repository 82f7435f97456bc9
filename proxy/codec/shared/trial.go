package shared

import "time"

// A trial finds out whether a group's answers arrive sooner shared or as they are. Sharing
// costs copies and comparisons, which on a link as fast as memory take longer than the
// bytes that they spare. Which of the two a job feels depends on its processors and links,
// and is measured rather than calculated: answers go shared and as they are in turns, and
// the better way is kept for a while.
//
// A trial has no clock: the time is passed to it. The zero trial shares. The Source's lock
// guards it.
type trial struct {
	off    bool // the last verdict: answers go as they are
	turn   int  // of the trial under way, from 1; 0: none is
	bytes  int  // of values answered with in this turn
	took   time.Duration
	on     [rounds]float64 // nanoseconds a byte, of the turns so far
	plain  [rounds]float64
	last   time.Time     // of the last answer
	usual  time.Duration // between answers, smoothed
	until  time.Time     // no trial begins before
	rest   int           // nor before this many turns' bytes more
	hold   time.Duration // how long the last verdict was kept
	lane   int           // bytes that were written to the lane lately
	writes time.Duration // how long writing these took
}

const (
	// rounds is how many turns of a trial have answers shared; as many do not.
	rounds = 3
	// turnBytes is how many bytes of values a turn has.
	turnBytes = 128 << 20
	// unusual times the usual pause is the most that counts of the time between two
	// answers. Beyond that the job does something else.
	unusual = 4
	// gain is how many times as long shared answers must take, in all rounds together, for
	// answers to go as they are; in most rounds they must take longer at all. A single
	// round may have a pause of the job's in one turn.
	gain = 1.1
	// worst is how many times as long as the present way the other way may take in a turn
	// before the trial ends early: a trial must not cost a job more than it can win.
	worst = 2
	// leastHold and mostHold bound how long a verdict is kept, and leastRest for how many
	// turns' bytes. A verdict that confirms the one before is kept for twice as long.
	leastHold, mostHold = 30 * time.Second, 16 * time.Minute
	leastRest           = 32
	// fastLane is how many bytes a second the lane must take, measured over fastBytes, for
	// a trial to begin: on slower links each byte that is spared pays.
	fastLane, fastBytes = 250e6, 64 << 20
)

// isPlain reports whether answers go as they are now.
func (t *trial) isPlain() bool {
	if t.turn > 0 {
		return (t.turn%2 == 0) != t.off // the verdict before is tried first
	}
	return t.off
}

// wrote records how long writing to the lane took. Old figures weigh less and less.
func (t *trial) wrote(bytes int, took time.Duration) {
	t.lane, t.writes = t.lane+bytes, t.writes+took
	if t.lane > 2*fastBytes {
		t.lane, t.writes = t.lane/2, t.writes/2
	}
}

func (t *trial) isFast() bool {
	return t.lane >= fastBytes && float64(t.lane) > fastLane*t.writes.Seconds()
}

// answered records an answer with bytes bytes of values, shared or not, that was sent
// now. It is the trial's only driver: turns end by bytes, and the times between
// answers are compared.
func (t *trial) answered(now time.Time, bytes int) {
	took := t.clipped(max(now.Sub(t.last), 0))
	first := t.last.IsZero()
	t.last = now
	switch {
	case first:
		return
	// Between trials: counts bytes until the rest is over, and begins one then if the
	// lane is fast, or if answers go as they are now, of which only a trial can say
	// whether that is still right.
	case t.turn == 0:
		if t.bytes += bytes; t.bytes >= turnBytes {
			t.bytes, t.rest = 0, max(t.rest-1, 0)
		}
		if t.rest == 0 && !now.Before(t.until) && (t.off || t.isFast()) {
			t.turn, t.bytes, t.took = 1, 0, 0
		}
		return
	}
	t.bytes, t.took = t.bytes+bytes, t.took+took
	round := (t.turn - 1) / 2
	// The turns of a round go one after the other, one each way.
	mine, other := &t.on[round], &t.plain[round]
	if t.isPlain() {
		mine, other = other, mine
	}
	if t.turn%2 == 0 && float64(t.took) > worst**other*turnBytes {
		t.decide(now, t.off)
		return
	}
	if t.bytes < turnBytes {
		return
	}
	*mine = float64(t.took) / float64(t.bytes)
	if t.bytes, t.took = 0, 0; t.turn < 2*rounds {
		t.turn++
		return
	}
	t.decide(now, t.isSlower())
}

// isSlower reports whether shared answers took clearly longer in the trial's turns.
func (t *trial) isSlower() bool {
	var on, plain float64
	longer := 0
	for i := range rounds {
		on, plain = on+t.on[i], plain+t.plain[i]
		if t.on[i] > t.plain[i] {
			longer++
		}
	}
	return on > gain*plain && 2*longer > rounds
}

// clipped returns how much of the time since the last answer counts, and updates the usual
// time.
func (t *trial) clipped(took time.Duration) time.Duration {
	if t.last.IsZero() {
		return 0
	}
	if t.usual > 0 {
		took = min(took, unusual*t.usual)
	}
	took = max(took, time.Nanosecond)
	t.usual += (took - t.usual) / 8
	if t.usual <= 0 {
		t.usual = took
	}
	return took
}

// decide ends the trial with a verdict.
func (t *trial) decide(now time.Time, off bool) {
	if off != t.off {
		t.hold = 0
	}
	hold := min(max(2*t.hold, leastHold), mostHold)
	*t = trial{off: off, last: now, usual: t.usual, until: now.Add(hold), rest: int(leastRest * hold / leastHold), hold: hold}
}

// SetAlways switches trials off: values are shared even if answers would arrive sooner as
// they are.
func (s *Source) SetAlways(always bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = always
}

// countAnswer records an answer, shared or not. The caller holds s.mu.
func (s *Source) countAnswer(bytes int) {
	if !s.always {
		s.trial.answered(s.now(), bytes)
	}
}

// wants is Wants for a group with several processes to share among. The caller holds
// s.mu.
func (s *Source) wants(o *Outlet, subject Subject) bool {
	switch {
	case s.trial.isPlain():
		s.plain(Slower)
		return false
	case !s.mayFit(subject.Bytes):
		s.plain(TooLarge)
		return false
	case s.latest[subject] != nil:
		return true
	}
	if o.tried = s.lessons.try(subject); !o.tried {
		s.plain(Seldom)
	}
	return o.tried
}

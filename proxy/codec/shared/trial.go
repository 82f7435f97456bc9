package shared

import "time"

// A trial finds out whether a group's answers come sooner shared or as they are. To
// share values takes copies and comparisons, which on a link as fast as memory last
// longer than the bytes that they spare; which of both a job feels depends on its
// processors and its links, and is measured, not calculated: answers go shared and as
// they are by turns, and the better is kept for a while.
//
// A trial has no clock: it is told what time it is. The zero trial shares.
type trial struct {
	off    bool // the last verdict: answers go as they are
	turn   int  // of the trial under way, from 1; 0: none is
	bytes  int  // of values that were answered with in this turn
	took   time.Duration
	on     [rounds]float64 // nanoseconds a byte, of the turns so far
	plain  [rounds]float64
	last   time.Time     // of the last answer
	usual  time.Duration // between answers, smoothed
	until  time.Time     // no trial before
	rest   int           // nor before so many turns' bytes more
	hold   time.Duration // that the last verdict was kept for
	lane   int           // bytes that were written to the lane lately
	writes time.Duration // which took so long
}

const (
	// rounds is how many turns of a trial have answers shared, and as many have not.
	rounds = 3
	// turnBytes are answered with in a turn.
	turnBytes = 128 << 20
	// unusual times as long as usual is the most that counts of the time between two
	// answers: the job does something else then.
	unusual = 4
	// gain is how many times as long shared answers must take, in all rounds together
	// and longer at all in most of them, for them to go as they are. A round alone may
	// have a pause of the job's in one of its turns.
	gain = 1.2
	// worst is how many times as long answers may take the other way, than the way
	// that they went, before the trial ends.
	worst = 2
	// leastHold and mostHold are for how long a verdict is kept, and leastRest for how
	// many turns. Each that is the same as the one before is kept for twice as long.
	leastHold, mostHold = 30 * time.Second, 16 * time.Minute
	leastRest           = 32
	// fastLane is how many bytes a second the lane takes at least where a trial
	// begins, over fastBytes of them: on slower links each byte that is spared pays.
	fastLane, fastBytes = 250e6, 64 << 20
)

// isPlain reports whether answers go as they are now.
func (t *trial) isPlain() bool {
	if t.turn > 0 {
		return (t.turn%2 == 0) != t.off // the verdict before is tried first
	}
	return t.off
}

// wrote notes that bytes were written to the lane, and how long that took.
func (t *trial) wrote(bytes int, took time.Duration) {
	t.lane, t.writes = t.lane+bytes, t.writes+took
	if t.lane > 2*fastBytes {
		t.lane, t.writes = t.lane/2, t.writes/2
	}
}

func (t *trial) isFast() bool {
	return t.lane >= fastBytes && float64(t.lane) > fastLane*t.writes.Seconds()
}

// answered notes an answer whose values have so many bytes, shared or not.
func (t *trial) answered(now time.Time, bytes int) {
	took := t.clipped(max(now.Sub(t.last), 0))
	first := t.last.IsZero()
	t.last = now
	switch {
	case first:
		return
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

// clipped returns what counts of the time since the answer before.
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

// decide ends the trial.
func (t *trial) decide(now time.Time, off bool) {
	if off != t.off {
		t.hold = 0
	}
	hold := min(max(2*t.hold, leastHold), mostHold)
	*t = trial{off: off, last: now, usual: t.usual, until: now.Add(hold), rest: int(leastRest * hold / leastHold), hold: hold}
}

// SetAlways has values be shared even where answers come sooner as they are.
func (s *Source) SetAlways(always bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = always
}

// countAnswer notes an answer, shared or not; the caller holds s.mu.
func (s *Source) countAnswer(bytes int) {
	if !s.always {
		s.trial.answered(s.now(), bytes)
	}
}

// wants is Wants where there is somebody to share with; the caller holds s.mu.
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

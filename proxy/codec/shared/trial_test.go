package shared

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// course is a made job: how long an answer takes shared and as it is, and how long
// the job does something else after each step of so many answers.
type course struct {
	bytes         int
	shared, plain time.Duration
	step          int
	pause         time.Duration
	lane          float64 // bytes a second
}

// run gives so many answers, and returns how long they took, with the pauses.
func (c course) run(t *trial, now *time.Time, answers int) (took time.Duration, plain int) {
	for i := range answers {
		each := c.shared
		if t.isPlain() {
			each = c.plain
			plain++
		} else {
			t.wrote(c.bytes/4, time.Duration(float64(c.bytes/4)/c.lane*1e9))
		}
		if i%c.step == 0 {
			each += c.pause
		}
		took += each
		*now = now.Add(each)
		t.answered(*now, c.bytes)
	}
	return took, plain
}

func drawCourse(t *rapid.T, lane float64) course {
	bytes := rapid.IntRange(256<<10, 16<<20).Draw(t, "bytes")
	perByte := func(name string) time.Duration {
		return max(time.Duration(float64(bytes)*rapid.Float64Range(0.2, 20).Draw(t, name+" ns a byte")), time.Microsecond)
	}
	return course{
		bytes: bytes, shared: perByte("shared"), plain: perByte("plain"),
		step: rapid.IntRange(10, 1000).Draw(t, "answers a step"), pause: time.Duration(rapid.IntRange(0, 2000).Draw(t, "pause, ms")) * time.Millisecond, lane: lane,
	}
}

// Over a fast lane answers take little longer than they do the better of both ways.
func TestTrialIsAsGoodAsTheBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCourse(t, 4*fastLane)
		answers := 200 * turnBytes / c.bytes
		now := time.Unix(1, 0)
		tr := &trial{}
		c.run(tr, &now, answers/10) // up to the first verdict
		took, _ := c.run(tr, &now, answers)
		best := time.Duration(answers)*min(c.shared, c.plain) + time.Duration((answers+c.step-1)/c.step)*c.pause
		// Shared answers may take gain times as long, as far as that can be told: a pause
		// may be in turns of one way and not in those of the other, and is taken for as
		// much as unusual answers. Trials are 6 turns in 38 at most.
		turns := float64(rounds * (turnBytes / c.bytes))
		if blur := 1 + 1.5*unusual/turns; float64(took) > (gain*blur+0.16)*float64(best) {
			t.Errorf("%v for answers that take %v the better way (shared %v, plain %v each); off: %v", took, best, c.shared, c.plain, tr.off)
		}
	})
}

// What is faster as it is goes so after the first trial, and is shared again once that
// is as fast.
func TestTrialFollowsTheLink(t *testing.T) {
	fast := course{bytes: 4 << 20, shared: 12 * time.Millisecond, plain: 6 * time.Millisecond, step: 100, pause: time.Second, lane: 1e9}
	slow := fast
	slow.plain = 40 * time.Millisecond
	tr := &trial{}
	now := time.Unix(1, 0)
	fast.run(tr, &now, 1000)
	if !tr.off {
		t.Fatalf("answers that take half as long as they are, are shared: %+v", tr)
	}
	if _, plain := fast.run(tr, &now, 10_000); plain < 8500 {
		t.Errorf("%d of 10,000 answers go as they are where that takes half as long", plain)
	}
	now = now.Add(mostHold)
	slow.run(tr, &now, 200*leastRest)
	if tr.off {
		t.Errorf("the link has become slow, and answers are not shared: %+v", tr)
	}
}

// Over a lane that is slow there is no trial: nothing goes twice.
func TestNoTrialOverASlowLane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCourse(t, fastLane/2)
		tr := &trial{}
		now := time.Unix(1, 0)
		if _, plain := c.run(tr, &now, 20*turnBytes/c.bytes); plain > 0 {
			t.Errorf("%d answers were not shared", plain)
		}
	})
}

// A link that is slow after all ends a trial before its turn has cost much.
func TestTrialEndsEarly(t *testing.T) {
	c := course{bytes: 1 << 20, shared: 2 * time.Millisecond, plain: 80 * time.Millisecond, step: 1000, lane: 1e9}
	tr := &trial{}
	now := time.Unix(1, 0)
	took, plain := c.run(tr, &now, 2000)
	if all := 2000 * c.shared; tr.off || plain == 0 || float64(took) > 1.3*float64(all) {
		t.Errorf("%d answers went as they are, all took %v, shared %v; off: %v", plain, took, all, tr.off)
	}
}

// After the verdict answers go as they are, whichever way they are asked about, and
// that is counted.
func TestSlowerAnswersGoAsTheyAre(t *testing.T) {
	s := NewSource(1<<20, nil)
	subject := Subject{First: 1, Last: 9, Keys: 9, Bytes: 2 * Least}
	one, other := s.Join(1, netip.MustParseAddrPort("10.0.0.1:1")), s.Join(2, netip.MustParseAddrPort("10.0.0.1:2"))
	one.Wants(subject)
	if !other.Wants(subject) {
		t.Fatal("nothing is shared at all")
	}
	s.trial.off = true
	if other.Wants(subject) {
		t.Error("an answer is wanted for sharing that is slower")
	}
	if _, ok := other.Refer(subject, make([]byte, subject.Bytes), asTheyAre, nil); ok {
		t.Error("an answer is shared that is slower so")
	}
	if n := s.Counts().Plain[Slower]; n != 2 {
		t.Errorf("%d answers are counted as slower, want 2", n)
	}
	s.SetAlways(true)
	s.trial = trial{}
	for range 10 * turnBytes / subject.Bytes {
		s.mu.Lock()
		s.trial.wrote(subject.Bytes, time.Nanosecond)
		s.countAnswer(subject.Bytes)
		s.mu.Unlock()
	}
	if s.trial.turn != 0 || s.trial.off {
		t.Errorf("a trial although values are always to be shared: %+v", s.trial)
	}
}

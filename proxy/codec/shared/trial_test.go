package shared

import (
	"net/netip"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// Over a lane that is fast answers go as they are where that is sooner, whichever way they are asked
// about, and that is counted. Over a slow one that is not even tried.
func TestSlowerAnswersGoAsTheyAre(t *testing.T) {
	for name, c := range map[string]struct {
		lane  float64 // bytes a second
		plain bool
	}{"fast": {4 * fastLane, true}, "slow": {fastLane / 2, false}} {
		t.Run(name, func(t *testing.T) {
			s := NewSource(1<<20, nil)
			s.SetTrials(&payoff.Trials{})
			now := time.Unix(1, 0)
			s.now = func() time.Time { return now }
			subject := Subject{First: 1, Last: 9, Keys: 9, Bytes: 2 * Least}
			one, other := s.Join(1, netip.MustParseAddrPort("10.0.0.1:1")), s.Join(2, netip.MustParseAddrPort("10.0.0.1:2"))
			one.Wants(subject)
			if !other.Wants(subject) {
				t.Fatal("nothing is shared at all")
			}
			plain := 0
			for range 20_000 {
				const bytes = 4 << 20
				s.mu.Lock()
				if s.trial.On() {
					s.trial.Use(1)
					s.speed.wrote(bytes, time.Duration(bytes/c.lane*1e9))
					now = now.Add(12 * time.Millisecond)
				} else {
					plain++
					now = now.Add(6 * time.Millisecond)
				}
				s.countAnswer(bytes)
				s.mu.Unlock()
			}
			if (plain > 10_000) != c.plain || !c.plain && plain > 0 {
				t.Fatalf("%d of 20,000 answers went as they are", plain)
			}
			if !c.plain {
				return
			}
			for s.trial.UnderWay() {
				now = now.Add(6 * time.Millisecond)
				s.countAnswer(4 << 20)
			}
			before := s.Counts().Plain[Slower]
			if other.Wants(subject) {
				t.Error("an answer is wanted for sharing that is slower")
			}
			if _, ok := other.Refer(subject, make([]byte, subject.Bytes), asTheyAre, nil); ok {
				t.Error("an answer is shared that is slower so")
			}
			if n := s.Counts().Plain[Slower] - before; n != 2 {
				t.Errorf("%d answers are counted as slower, want 2", n)
			}
		})
	}
}

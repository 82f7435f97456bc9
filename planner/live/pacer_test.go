package live

import (
	"testing"
	"time"
)

// Workers that keep turning are decided all the same, soon after the first.
func TestPacerWaitsForWorkersButNotForLong(t *testing.T) {
	now := time.Unix(0, 0)
	p := newPacer(now)
	first := now
	for {
		wait := p.told(now)
		if wait == 0 {
			break
		}
		if wait > gather {
			t.Fatalf("%v after the first worker it is waited for %v", now.Sub(first), wait)
		}
		if now = now.Add(gather / 3); now.Sub(first) > time.Minute {
			t.Fatal("it is waited for ever")
		}
	}
	if waited := now.Sub(first); waited < gatherMost || waited > gatherMost+gather {
		t.Errorf("it was waited for %v", waited)
	}
	p.decided(now, 0)
	if wait := p.told(now); wait != gather {
		t.Errorf("after the decision the next worker has it waited for %v", wait)
	}
}

// A few long decisions may follow each other; for ever, a part of the time is spent on
// them, and on short ones as well.
func TestPacerSpendsAPartOfTheTime(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 700 * time.Millisecond} {
		start := time.Unix(0, 0)
		p, now, spent, waited := newPacer(start), start, time.Duration(0), time.Duration(0)
		for range 1 + 120*time.Second/took {
			if wait := p.wait(now); wait > 0 {
				if spent < burst {
					t.Fatalf("after %v of decisions of %v it is waited for %v", spent, took, wait)
				}
				now, waited = now.Add(wait), waited+wait
				if again := p.wait(now); again > 0 {
					t.Fatalf("after a wait it is waited for %v more", again)
				}
			}
			now, spent = now.Add(took), spent+took
			p.decided(now, took)
		}
		if all := now.Sub(start); spent > all/rest+burst+took || spent < all/rest {
			t.Errorf("decisions of %v: %v of %v", took, spent, all)
		}
		now = now.Add(time.Hour)
		if p.wait(now); p.left != burst {
			t.Errorf("after an hour %v may be spent", p.left)
		}
	}
}

package agent

import (
	"testing"
	"time"
)

// Where messages alone cost more than the budget, busy streams rest for so much of the time that
// it is kept, and no longer than that is so.
func TestRestsWithinBudget(t *testing.T) {
	c := sampleController{Budget: 1}
	look, cost := sampleLook{At: time.Unix(1000, 0), Jobs: map[string]sampleSeen{}}, messageCost{}
	d, spent := sampleDecision{}, time.Duration(0)
	run := func(seconds int, percent float64) {
		for range seconds {
			// A tenth of a percent goes into other things.
			took := time.Duration(percent * 1e7 / float64(max(d.RestOf, 1)))
			cost.add(cost.last+took, 0, d.RestOf)
			spent += took + time.Millisecond
			look.At, look.Traffic, look.Whole, look.Total = look.At.Add(time.Second), cost.took, cost.whole, spent
			d = c.Decide(look)
		}
	}
	run(60, 0.5)
	if d.RestOf != 1 || d.Over {
		t.Errorf("a load of half the budget: %+v", d)
	}
	run(300, 6)
	if d.RestOf != 4 && d.RestOf != 8 || d.Over { // 4 takes more than 1%, and 8 less
		t.Errorf("a load of six times the budget: %+v", d)
	}
	if most := 5*3*time.Second + 15*time.Second/10; spent > most {
		t.Errorf("%v spent, want %v at most", spent, most)
	}
	run(300, 100)
	if d.RestOf != maxRestOf || !d.Over {
		t.Errorf("a load that no rest brings within the budget: %+v", d)
	}
	run(120, 0.5)
	if d.RestOf != 1 || d.Over {
		t.Errorf("back at half the budget: %+v", d)
	}
}

func TestRunsThatPassCostTheSameInRests(t *testing.T) {
	var c messageCost
	// Of a second's 100 ms 60 pass through a million runs, and rests multiply the others.
	c.add(100*time.Millisecond, 1e6, 8)
	if want := 60*time.Millisecond + 8*40*time.Millisecond; c.took != 100*time.Millisecond || c.whole != want {
		t.Errorf("%v, without rests %v, want %v", c.took, c.whole, want)
	}
}

func TestOnlyBusyStreamsRest(t *testing.T) {
	now, messages := time.Unix(1000, 0), uint64(0)
	var b busyness
	run := func(perSecond uint64, of uint32) {
		for range 20 {
			now, messages = now.Add(time.Second), messages+perSecond/uint64(of)
			b = b.at(now, messages, of)
		}
	}
	for _, step := range []struct {
		perSecond uint64
		of        uint32
		rests     bool
	}{{40, 1, false}, {60, 1, true}, {400, 8, true}, {32, 8, true}, {16, 8, false}, {40, 8, false}} {
		if run(step.perSecond, step.of); b.rests != step.rests {
			t.Errorf("%+v: it rests %v", step, b.rests)
		}
	}
}

// A turn that takes long comes rarely, as far as its share of the budget asks for.
func TestPace(t *testing.T) {
	for _, tc := range []struct {
		took   time.Duration
		budget float64
		pause  time.Duration
	}{
		{time.Millisecond, 0, time.Second}, {time.Second, 0, time.Second}, {100 * time.Microsecond, 1, time.Second},
		{4 * time.Millisecond, 1, 4 * time.Second}, {4 * time.Millisecond, 2, 2 * time.Second}, {time.Second, 1, longestTurn},
	} {
		p := pace{least: time.Second, share: 0.1, took: tc.took}
		if pause := p.pause(tc.budget); pause.Round(time.Millisecond) != tc.pause {
			t.Errorf("%v within %v%%: a pause of %v, want %v", tc.took, tc.budget, pause, tc.pause)
		}
	}
}

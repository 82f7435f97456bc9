package dial

import (
	"context"
	"slices"
	"testing"
	"time"
)

// Pauses grow to the longest one and no further, and differ.
func TestNextPausesGrowAndDiffer(t *testing.T) {
	p := &Pause{First: time.Second, Most: 5 * time.Second}
	different := map[time.Duration]bool{}
	for round := range 3 {
		for i, most := range []time.Duration{1, 4, 5, 5, 5} {
			got := p.Next()
			different[got] = true
			if got < time.Second/2 || got > most*time.Second {
				t.Errorf("round %d, pause %d is %v: want 500ms to %v", round, i, got, most*time.Second)
			}
		}
		p.Reset()
	}
	if len(different) < 10 {
		t.Errorf("only %d different pauses: hosts would come back together", len(different))
	}
}

// Of hosts that lose a peer at one moment not many more than half try to reach it in
// the same second, when it is back after one or more seconds, and all do within the
// longest pause.
func TestHostsComeBackApart(t *testing.T) {
	const hosts = 3000
	for _, away := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 10 * time.Second, time.Minute} {
		var back []time.Duration
		for range hosts {
			p, at := PausePlanner(300*time.Millisecond), time.Duration(0)
			for at < away {
				at += p.Next()
			}
			back = append(back, at-away)
		}
		slices.Sort(back)
		busiest, first := 0, 0
		for i, at := range back {
			for back[first] < at-time.Second {
				first++
			}
			busiest = max(busiest, i-first+1)
		}
		if busiest > hosts*2/3 || back[hosts-1] > 5*time.Second {
			t.Errorf("after %v %d of %d hosts come in one second, the last after %v", away, busiest, hosts, back[hosts-1])
		}
	}
}

func TestWaitEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Pause{First: time.Hour}).Wait(ctx); err == nil {
		t.Error("a pause outlasts its context")
	}
}

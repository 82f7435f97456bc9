package jobs

import (
	"slices"
	"testing"
)

// ticksOf are the ticks in which a request of the proxies' own goes again, the
// first being the one in which it was asked about first.
func ticksOf(p *pace, own int32, ticks int) (all []int) {
	for i := range ticks {
		p.nextTick()
		if p.again(9, own) {
			all = append(all, i)
		}
	}
	return all
}

// What nobody acknowledges is said again soon, and then more and more seldom, but
// never more seldom than every few ticks.
func TestRepetitionsBecomeSeldom(t *testing.T) {
	p := newPace()
	p.random = func(int32, int32, int) uint64 { return 0 }
	if got, want := ticksOf(p, 1, 20), []int{1, 3, 7, 11, 15, 19}; !slices.Equal(got, want) {
		t.Errorf("in ticks %v, want %v", got, want)
	}
	p.random = func(_, own int32, tries int) uint64 { return uint64(own) + uint64(tries) }
	a, b := ticksOf(p, 2, 200), ticksOf(p, 3, 200)
	if slices.Equal(a, b) {
		t.Error("two requests go again in the same ticks for ever")
	}
	for i := 1; i < len(a); i++ {
		if pause := a[i] - a[i-1]; pause < 2 || pause > mostPause+mostPause/2 {
			t.Errorf("%d ticks between repetitions %d and %d", pause, i-1, i)
		}
	}
	p.nextTick()
	p.nextTick()
	if len(p.all) > 0 {
		t.Errorf("%d requests are remembered that nobody asks about any more", len(p.all))
	}
}

// A server that does not acknowledge what it is asked is asked again, with pauses.
func TestAJobPacesItsOwnRequests(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Probe: true})
	x.jobs.plans.listed, x.used = true, true
	to := connect(t, x)
	x.router.UseResend()
	x.pace.random = func(int32, int32, int) uint64 { return 0 }
	x.locked(func() error { x.settleHandler(); return nil })
	const ticks = 40
	before := asked(to)
	if before != 1 {
		t.Fatalf("the servers are asked %d times", before)
	}
	for range ticks {
		x.tick()
	}
	if n := asked(to) - before; n < ticks/(mostPause+mostPause/2) || n > ticks/mostPause+2 {
		t.Errorf("a request was said again %d times in %d ticks", n, ticks)
	}
}

package counts

import (
	"testing"
	"time"
)

// pingPong has a worker push and pull by turns, with these numbers of steps before, during and
// after a rest. Each message takes a millisecond.
func pingPong(j *Locality, before, rest, after int) (bytes uint64) {
	at, timestamp := int64(1e9), int32(0)
	const size = 100
	message := func(push, seen bool) {
		r := Request{Time: at, Timestamp: timestamp, Push: push, Pull: !push}
		if seen {
			j.Ask(r)
			j.Moved(r, true, size, true, false)
			r.Time += 1e6 / 2
			j.Answer(r)
		}
		at, timestamp, bytes = at+1e6, timestamp+1, bytes+size
	}
	for step := range before + rest + after {
		if step == before+rest && rest > 0 {
			j.Forget(0, 0, at)
			j.Rested(Request{Time: at}, true, uint64(2*size*rest), true)
		}
		seen := step < before || step >= before+rest
		message(true, seen)
		message(false, seen)
	}
	return bytes
}

func TestRestIsMadeUpFor(t *testing.T) {
	o := DefaultLocalityOptions
	j := NewLocality(o)
	bytes := pingPong(j, 100, 250, 50)
	all, totals := j.All(), j.Totals()
	if p := all.Pairs[0][0]; totals.Bytes != bytes || totals.LeftHost != bytes || p.ToServer != bytes || p.Requests != 800 {
		t.Errorf("%d bytes in all, %d left, %+v; want %d bytes and 800 requests", totals.Bytes, totals.LeftHost, p, bytes)
	}
	if all.Steps[0] != 400 {
		t.Errorf("%d steps, want 400", all.Steps[0])
	}
	if l := j.Lately(int64(3e9), 10*time.Second); l.Steps[0] != 400 || l.Bytes != bytes {
		t.Errorf("lately %d steps and %d bytes, want 400 and %d", l.Steps[0], l.Bytes, bytes)
	}
	workers, _ := j.Now()
	if every := workers[0].StepEvery; every < 1900*time.Microsecond || every > 2100*time.Microsecond {
		t.Errorf("a step takes %v, want 2ms", every)
	}
	if totals.Unanswered != 0 || totals.Unasked != 0 {
		t.Errorf("%+v", totals)
	}
}

// What is in flight when a rest begins is forgotten, and its worker waits no longer.
func TestForget(t *testing.T) {
	j := NewLocality(DefaultLocalityOptions)
	for ts := range int32(3) {
		j.Ask(Request{Time: 1e9, Timestamp: ts, Server: int(ts % 2), Pull: true})
	}
	j.Forget(0, 0, 15e8)
	if workers, waits := j.Now(); len(waits) != 1 || waits[0].Server != 1 || !workers[0].Waiting {
		t.Errorf("%+v, %+v", workers, waits)
	}
	j.Forget(0, 1, 15e8)
	if workers, waits := j.Now(); len(waits) != 0 || workers[0].Waiting {
		t.Errorf("%+v, %+v", workers, waits)
	}
	if l := j.Lately(2e9, time.Second); l.Waited[0] != 0.5 {
		t.Errorf("it has waited for %v of a second, want 0.5", l.Waited[0])
	}
	if n := j.Totals().Unanswered; n != 0 {
		t.Errorf("%d count as unanswered", n)
	}
}

package counts

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func testOptions() LocalityOptions {
	o := DefaultLocalityOptions
	o.Interval, o.Intervals, o.Pending = time.Second, 4, 8
	return o
}

func at(seconds float64) int64 { return int64(1e9 * (1000 + seconds)) }

func TestRepeatsCountOnce(t *testing.T) {
	j := NewLocality(testOptions())
	r := Request{Worker: 1, Server: 2, Time: at(0), Timestamp: 5, Push: true}
	if !j.Ask(r) || j.Ask(r) || !j.Answer(r) || j.Answer(r) {
		t.Error("a request and its answer must be new once each")
	}
	r.Server = 0
	if !j.Ask(r) {
		t.Error("the same timestamp to another server is another request")
	}
	r.Timestamp = 4
	if !j.Ask(r) {
		t.Error("timestamps may come out of order")
	}
	r.Timestamp = 5 + seenWindow
	j.Ask(r)
	r.Timestamp = 5
	if j.Ask(r) {
		t.Error("one that is out of the window is a repeat")
	}
	j.Restart()
	if !j.Ask(r) {
		t.Error("after a restart timestamps begin anew")
	}
}

// Repeats are recognised as by a plain set, as long as they are in the window.
func TestSeenAgainstSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, set := newSeen(), map[int32]bool{}
		highest := rapid.Int32Range(0, 1<<31-1-100*400).Draw(t, "start")
		for range 100 {
			highest += rapid.Int32Range(0, 400).Draw(t, "step")
			ts := highest - rapid.Int32Range(0, min(highest, seenWindow-1)).Draw(t, "back")
			if len(set) == 0 {
				ts = highest
			}
			if fresh := s.noteMessage(Request{Timestamp: ts}, false); fresh == set[ts] {
				t.Fatalf("timestamp %d: new is %v, seen before is %v", ts, fresh, set[ts])
			}
			set[ts] = true
		}
	})
}

func TestLatencyAndPending(t *testing.T) {
	j := NewLocality(testOptions())
	for ts := range int32(100) {
		r := Request{Time: at(float64(ts) / 1000), Timestamp: ts, Pull: true}
		j.Ask(r)
		r.Time += int64(ts+1) * 1e6
		j.Answer(r)
	}
	j.Answer(Request{Time: at(1), Timestamp: 500, Pull: true})
	h := j.All().Latency.Histogram()
	if h.TotalCount() != 100 {
		t.Fatalf("%d latencies, want 100", h.TotalCount())
	}
	for q, want := range map[float64]int64{50: 50_000, 99: 99_000, 100: 100_000} {
		if got := h.ValueAtQuantile(q); got < want*98/100 || got > want*102/100 {
			t.Errorf("quantile %v is %d microseconds, want %d", q, got, want)
		}
	}
	for ts := range int32(20) {
		j.Ask(Request{Time: at(2), Timestamp: 1000 + ts, Push: true})
	}
	want := Totals{Answered: 100, Unasked: 1, Unanswered: 12}
	if got := j.Totals(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// An agent sees servers answer workers of other hosts, whose requests it does not see: they are no
// stragglers, and no workers without steps.
func TestWorkersElsewhereAreNoStragglers(t *testing.T) {
	j := NewLocality(testOptions())
	for ts := range int32(40) {
		now := at(float64(ts) * 0.05)
		for w := range 3 {
			j.Rested(Request{Worker: w, Time: now}, false, 1000, true)
		}
		j.Ask(Request{Worker: 3, Time: now, Timestamp: ts, Push: true})
	}
	v, lately := j.All(), j.Lately(at(5), 10*time.Second)
	if len(v.Stragglers())+len(lately.Stragglers()) > 0 {
		t.Errorf("stragglers %v, lately %v, of steps %v", v.Stragglers(), lately.Stragglers(), v.Steps)
	}
	if v.MedianSteps() != 40 || lately.MedianSteps() != 40 {
		t.Errorf("%d steps, %d lately; want 40", v.MedianSteps(), lately.MedianSteps())
	}
}

func TestStepsAndStragglers(t *testing.T) {
	j := NewLocality(testOptions())
	for ts := range int32(40) {
		for w := range 3 {
			if w == 2 && ts%4 != 0 {
				continue
			}
			for s := range 2 {
				r := Request{Worker: w, Server: s, Time: at(float64(ts) * 0.05), Timestamp: 2 * ts, Push: true}
				j.Ask(r)
				r.Push, r.Pull, r.Timestamp = false, true, 2*ts+1
				j.Ask(r)
			}
		}
	}
	v := j.All()
	if !slices.Equal(v.Steps, []uint64{40, 40, 10}) {
		t.Errorf("steps %v", v.Steps)
	}
	if !slices.Equal(v.Stragglers(), []int{2}) {
		t.Errorf("stragglers %v, want worker 2", v.Stragglers())
	}
	if recent := j.Recent(500 * time.Millisecond); recent.Steps[0] >= 40 || recent.Steps[0] < 10 {
		t.Errorf("%d steps in the last interval", recent.Steps[0])
	}
}

func TestTimeRanges(t *testing.T) {
	j := NewLocality(testOptions())
	keys := []uint64{1, 2, 3, 4, 100, 1 << 40}
	for i := range 8 {
		j.Moved(Request{Worker: i % 2, Server: 1, Time: at(float64(i))}, i%2 == 0, 100, true, i == 3)
		j.Other(at(float64(i)), 10, false)
		j.Use(at(float64(i)), Batch{Worker: i % 2, Keys: keys, Each: Sums{Pulls: 1}})
	}
	if got, want := j.Totals(), (Totals{Bytes: 880, LeftHost: 800, Repeated: 100, Messages: 16}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	all := j.All()
	if p := all.Pairs[0][1]; p.ToServer != 400 || all.Pairs[1][1].ToWorker != 400 {
		t.Errorf("pairs %v", all.Pairs)
	}
	v := j.Between(at(6), at(7.5))
	if v.Bytes != 220 || v.Pairs[0][1].ToServer != 100 {
		t.Errorf("from 6 to 7.5: %d bytes, pairs %v", v.Bytes, v.Pairs)
	}
	for w, row := range v.Heat.Rows {
		sum := uint64(0)
		for _, b := range row {
			sum += b[Pulls]
		}
		if sum != uint64(len(keys)) {
			t.Errorf("worker %d: %d pulls from 6 to 7.5, want %d", w, sum, len(keys))
		}
	}
	if len(v.Heat.Firsts) != len(keys) {
		t.Errorf("blocks begin at %v, want one for each of %d keys", v.Heat.Firsts, len(keys))
	}
	if early := j.Between(at(0), at(1)); early.Bytes != 0 {
		t.Errorf("an interval that left the ring still has %d bytes", early.Bytes)
	}
}

// A request whose answer may have passed unseen does not wait for ever; others of
// the pair, younger ones and those of other pairs do.
func TestGiveUpBefore(t *testing.T) {
	j := NewLocality(testOptions())
	ask := func(server int, ts int32, seconds float64) Request {
		r := Request{Server: server, Time: at(seconds), Timestamp: ts, Pull: true}
		j.Ask(r)
		return r
	}
	ask(0, 1, 0) // its answer passes unseen
	answered := ask(0, 2, 1)
	ask(0, 3, 2)
	ask(1, 1, 0)
	unknown := answered
	unknown.Timestamp = 77
	j.GiveUpBefore(unknown)
	if _, waits := j.Now(); len(waits) != 2 || waits[0].Requests+waits[1].Requests != 4 {
		t.Fatalf("%+v wait after an answer that nobody waits for", waits)
	}
	answered.Time = at(3)
	j.GiveUpBefore(answered)
	j.Timed(answered)
	workers, waits := j.Now()
	if len(waits) != 2 || waits[0].Server != 1 || waits[1].Since != at(2) || waits[1].Requests != 1 {
		t.Errorf("%+v wait", waits)
	}
	if !workers[0].Waiting || j.Totals() != (Totals{Answered: 1, Unanswered: 1}) {
		t.Errorf("%+v, %+v", workers, j.Totals())
	}
}

// Intervals are joined in which not the same workers had answers.
func TestThinnedIntervalsOfOtherWorkers(t *testing.T) {
	o := testOptions()
	o.Fine, o.Coarse, o.Intervals = 1, 10*time.Second, 8
	j := NewLocality(o)
	for i, worker := range []int{2, 0, 1, 2, 0} {
		r := Request{Worker: worker, Server: 2 - worker, Time: at(float64(2 * i)), Timestamp: int32(i), Pull: true}
		j.Ask(r)
		r.Time += 1e6
		j.Answer(r)
	}
	if n := j.All().Latency.Histogram().TotalCount(); n != 5 {
		t.Errorf("%d latencies of 5", n)
	}
	joined := j.Between(at(0), at(20))
	for worker, want := range []int64{2, 1, 2} {
		if n := joined.ByWorker[worker].Histogram().TotalCount(); n != want {
			t.Errorf("%d latencies of worker %d, want %d", n, worker, want)
		}
	}
}

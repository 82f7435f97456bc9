package agent

import (
	"testing"
	"time"
)

// A host is a model of one whose agent samples as the controller says.
type host struct {
	c       sampleController
	now     sampleLook
	jobs    map[string]*job
	decided sampleDecision
}

// A job makes steps of two timestamps, a pull and a push.
type job struct {
	stepsPerSecond float64
	keysPerStep    float64
	nanosPerByte   float64
	left           float64 // of a timestamp
	full           float64 // bytes, not rounded
	copied         float64
	timestamp      int32
}

func newHost(budget float64) *host {
	return &host{
		c: sampleController{Budget: budget, Start: 16}, jobs: map[string]*job{},
		now: sampleLook{At: time.Unix(1000, 0), Jobs: map[string]sampleSeen{}},
	}
}

// run lets time pass, a second at a time.
func (h *host) run(seconds int) {
	for range seconds {
		h.now.At = h.now.At.Add(time.Second)
		seen := map[string]sampleSeen{}
		for name, j := range h.jobs {
			s := h.now.Jobs[name]
			oneIn := float64(16)
			if d, ok := h.decided.Jobs[name]; ok {
				oneIn = float64(d.OneIn)
			}
			j.left += 2 * j.stepsPerSecond
			n := int32(j.left)
			j.left -= float64(n)
			j.timestamp += n
			bytes := 4 * j.keysPerStep * float64(n)
			j.full += bytes
			j.copied += bytes / oneIn
			s.Requests += uint64(n)
			if n > 0 {
				s.Sampled++
			}
			s.AllBytes, s.KeyBytes = uint64(j.full), uint64(j.copied)
			if j.timestamp > 0 {
				s.Clocks = map[sampleClock]int32{{}: j.timestamp}
			}
			h.now.KeyNanos += int64(bytes / oneIn * j.nanosPerByte)
			seen[name] = s
		}
		h.now.Jobs = seen
		h.decided = h.c.Decide(h.now)
	}
}

// A small job is looked at whole.
func TestSmallJobIsLookedAtWhole(t *testing.T) {
	h := newHost(1)
	h.jobs["a"] = &job{stepsPerSecond: 24, keysPerStep: 2000, nanosPerByte: 1}
	h.run(5)
	if d := h.decided.Jobs["a"]; d.OneIn != 1 || h.decided.Over {
		t.Errorf("a small job is sampled one in %d, over budget %v", d.OneIn, h.decided.Over)
	}
}

// Without a job, and beside one that stands still, nothing changes.
func TestNothingToSee(t *testing.T) {
	h := newHost(1)
	h.run(600)
	if len(h.decided.Jobs) != 0 || h.decided.Over || h.decided.Percent != 0 {
		t.Errorf("%+v", h.decided)
	}
	h.jobs["a"] = &job{stepsPerSecond: 24, keysPerStep: 2000, nanosPerByte: 1}
	h.run(20)
	h.jobs["a"].stepsPerSecond = 0
	h.run(600)
	if d := h.decided.Jobs["a"]; d.OneIn != 1 || h.decided.Over {
		t.Errorf("a job that stands still is sampled one in %d", d.OneIn)
	}
}

// A job that moves much is sampled within the budget, and no sparser than that
// asks for.
func TestWithinBudget(t *testing.T) {
	h := newHost(1)
	h.jobs["a"] = &job{stepsPerSecond: 200, keysPerStep: 100_000, nanosPerByte: 0.9} // 16% in all
	h.run(120)
	d := h.decided.Jobs["a"]
	if h.decided.Percent > 1.01 || h.decided.Over || d.OneIn > 32 || d.OneIn < 16 {
		t.Errorf("%+v", h.decided)
	}
	if d.Window != maxWindow {
		t.Errorf("windows of %d timestamps", d.Window)
	}
	h.jobs["a"].keysPerStep = 100
	h.run(60)
	if d := h.decided.Jobs["a"]; d.OneIn != 1 {
		t.Errorf("now that it is small it is sampled one in %d", d.OneIn)
	}
}

// Unused budget is saved, a minute's worth at most, and pays for more later: no
// budget is left over between two rates, and none is overdrawn.
func TestSavingsPayForMoreLater(t *testing.T) {
	for name, before := range map[string]int{"from the start": 0, "after ten minutes without a job": 600} {
		t.Run(name, func(t *testing.T) {
			h := newHost(1)
			h.c.Start = 2
			h.run(before)
			// Of 2.2% half would be too much, and a quarter would leave some.
			h.jobs["a"] = &job{stepsPerSecond: 50, keysPerStep: 100_000, nanosPerByte: 0.45}
			took := func() float64 {
				return float64(h.now.KeyNanos)/1e9 + h.jobs["a"].copied*kernelNanosPerByte/1e9
			}
			for second := 1; second <= 600; second++ {
				h.run(1)
				if most := 0.01*float64(second) + 0.01*saving.Seconds() + 0.05; took() > most {
					t.Fatalf("%d s into the job its keys have taken %.2f s, want %.2f at most", second, took(), most)
				}
				if d := h.decided.Jobs["a"]; second > 3 && second < 20 && d.OneIn > 1 {
					t.Errorf("%d s into the job one in %d is looked at", second, d.OneIn)
				}
			}
			if took() < 0.95*0.01*600 {
				t.Errorf("after 600 s its keys have taken %.2f s: some of the budget is left", took())
			}
		})
	}
}

// The keys of a step every few seconds are looked at whatever that takes, and
// that it takes too much is said.
func TestFloorOfSlowStepsIsLookedAtWhateverItTakes(t *testing.T) {
	h := newHost(1)
	h.jobs["a"] = &job{stepsPerSecond: 3, keysPerStep: 10_000_000, nanosPerByte: 0.9}
	h.run(600)
	d := h.decided.Jobs["a"]
	between := float64(d.OneIn) * float64(d.Window) / (2 * 3)
	if !h.decided.Over || !d.AtFloor || between > stepEvery.Seconds() || h.decided.Percent <= 1 {
		t.Errorf("%+v: a window every %.1f s", h.decided, between)
	}
	h.jobs["a"].keysPerStep = 1000
	h.run(60)
	if d := h.decided.Jobs["a"]; h.decided.Over || d.OneIn != 1 {
		t.Errorf("it still says so when it is not so any more, or pays for it: %+v", h.decided)
	}
}

// Each job is sampled as it needs: a slow one is looked at whole beside one that
// takes the budget.
func TestJobsByThemselves(t *testing.T) {
	h := newHost(1)
	h.jobs["slow"] = &job{stepsPerSecond: 0.5, keysPerStep: 1000, nanosPerByte: 1}
	h.jobs["fast"] = &job{stepsPerSecond: 500, keysPerStep: 100_000, nanosPerByte: 0.9}
	h.run(60)
	if slow, fast := h.decided.Jobs["slow"], h.decided.Jobs["fast"]; slow.OneIn != 1 || fast.OneIn < 32 || h.decided.Over {
		t.Errorf("%+v", h.decided)
	}
}

// Five jobs from half a megabyte a second to as much as two cores move: what the
// budget allows is used, and small jobs are looked at whole, whether the budget can
// be met or not.
func TestFiveJobsShareTheBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		nanosPerByte float64 // 3: as on a quiet machine; 8: where others take its caches
		over         bool
	}{"within the budget": {3, false}, "beyond the budget": {8, true}} {
		t.Run(name, func(t *testing.T) {
			h := newHost(1)
			h.c.Start = 4 // as the agent's
			small := []string{"0.5 MB/s", "1 GB/s"}
			// Keys of 8 bytes of two workers; the model has 4 to a key.
			for name, j := range map[string]job{
				"0.5 MB/s": {stepsPerSecond: 20, keysPerStep: 4 * 250},
				"5 MB/s":   {stepsPerSecond: 20, keysPerStep: 4 * 2500},
				"20 MB/s":  {stepsPerSecond: 20, keysPerStep: 4 * 4000},
				"100 MB/s": {stepsPerSecond: 17, keysPerStep: 4 * 4000},
				"1 GB/s":   {stepsPerSecond: 2, keysPerStep: 4 * 1500},
			} {
				j.nanosPerByte = tc.nanosPerByte
				h.jobs[name] = &j
			}
			for _, name := range []string{"idle", "another", "a third"} {
				h.jobs[name] = &job{}
			}
			for second := range 120 {
				h.run(1)
				if second < 10 {
					continue
				}
				for _, name := range small {
					if d := h.decided.Jobs[name]; d.OneIn != 1 || d.AtFloor {
						t.Errorf("%s: %+v, want all of its keys looked at", name, d)
					}
				}
				for name, d := range h.decided.Jobs {
					if most := map[bool]uint32{true: 1, false: 4}[second < 30]; !tc.over && d.Percent > 0 && d.OneIn > most {
						t.Errorf("%s: %+v after %d s, want one in %d at least", name, d, second, most)
					}
				}
				if h.decided.Over != tc.over {
					t.Errorf("after %d s: %+v", second, h.decided)
				}
			}
		})
	}
}

// A job that has just been met is sampled sparsely until its keys have been
// seen, unless it is so slow that its steps would be missed.
func TestStartSparselyUntilKeysWereSeen(t *testing.T) {
	h := newHost(1)
	h.jobs["a"] = &job{stepsPerSecond: 200, keysPerStep: 1_000_000, nanosPerByte: 0.9}
	h.run(1)
	if d := h.decided.Jobs["a"]; d.OneIn != 16 {
		t.Errorf("at first one in %d", d.OneIn)
	}
	h.jobs["b"] = &job{keysPerStep: 100, nanosPerByte: 0.9}
	h.run(3) // its processes have started, but do not train yet
	h.jobs["b"].stepsPerSecond = 2
	h.run(2)
	if d := h.decided.Jobs["b"]; d.OneIn > 4 || d.Window != minWindow {
		t.Errorf("a slow one: %+v", d)
	}
}

// A cost that wavers around the budget exceeds it for minutes: the agent says so once, and not every
// second.
func TestOverBudgetDoesNotWaver(t *testing.T) {
	h := newHost(1)
	turns, over := 0, false
	for i := range 600 {
		h.now.Total += time.Duration(1-2*(i/8%2))*6*time.Millisecond + 12*time.Millisecond // 0.6 or 1.8%, by turns of 8 s
		h.run(1)
		if h.decided.Over != over {
			over = h.decided.Over
			turns++
		}
	}
	if turns != 1 || !over {
		t.Errorf("over budget: %v at last, after %d changes", over, turns)
	}
	h.run(60)
	if h.decided.Over {
		t.Error("over budget after a minute without any cost")
	}
}

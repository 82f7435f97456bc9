package payoff

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// job is a made one: how long a unit of its work takes with a measure and without, and how long it does
// something else after each step of so many units.
type job struct {
	with, without time.Duration
	step          int
	pause         time.Duration
	unused        bool // there is nothing for the measure to do
	dear          bool // a trial is not worth its cost
	noise         func() float64
}

// does has the job work for a time, and returns how much it has done, and for how much of the time the
// measure was off.
func (j job) does(t *Trial, during time.Duration, now *time.Time) (work int, off time.Duration) {
	for end := now.Add(during); now.Before(end); work++ {
		took := j.with
		if !t.On() {
			took = j.without
			off += took
		} else if !j.unused {
			t.Use(1)
		}
		if j.step > 0 && work%j.step == 0 {
			took += j.pause
		}
		if j.noise != nil {
			took = time.Duration(float64(took) * j.noise())
		}
		*now = now.Add(took)
		t.Step(*now, 1, !j.dear)
	}
	return work, off
}

func TestTrialFindsTheFasterWay(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		job job
		off bool
	}{
		"faster":                    {job: job{with: 5 * ms, without: 20 * ms}},
		"the same":                  {job: job{with: 20 * ms, without: 20 * ms}},
		"a little slower":           {job: job{with: 20800 * time.Microsecond, without: 20 * ms}},
		"slower":                    {job: job{with: 25 * ms, without: 20 * ms}, off: true},
		"much slower":               {job: job{with: 800 * ms, without: 10 * ms}, off: true},
		"without it hardly at all":  {job: job{with: 10 * ms, without: 5 * time.Second}},
		"slow job, faster":          {job: job{with: 300 * ms, without: 400 * ms}},
		"slow job, slower":          {job: job{with: 600 * ms, without: 400 * ms}, off: true},
		"in steps, slower":          {job: job{with: 25 * ms, without: 20 * ms, step: 100, pause: 500 * ms}, off: true},
		"in steps of two turns":     {job: job{with: 20 * ms, without: 20 * ms, step: 100, pause: 500 * ms}},
		"a long pause now and then": {job: job{with: 20 * ms, without: 20 * ms, step: 4400, pause: 9 * time.Second}},
		"unused":                    {job: job{with: 25 * ms, without: 20 * ms, unused: true}},
		"not worth a trial":         {job: job{with: 25 * ms, without: 20 * ms, dear: true}},
	} {
		t.Run(name, func(t *testing.T) {
			tr, now := &Trial{}, time.Unix(1000, 0)
			_, first := c.job.does(tr, time.Hour, &now)
			_, off := c.job.does(tr, time.Hour, &now)
			if share := off.Hours(); c.off && share < 0.7 || !c.off && share > 0.1 {
				t.Errorf("the measure is off for %.2f of the time; %+v", share, tr.Verdict())
			}
			if tried := tr.Verdict().Trials > 0 || first > 0; tried == (c.job.unused || c.job.dear) {
				t.Errorf("there was a trial: %v", tried)
			}
		})
	}
}

// Whatever the two ways are like, a job loses little against the better one, with units that take up to a
// tenth more or less, and pauses.
func TestTrialIsAsGoodAsTheBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		with := time.Duration(rapid.IntRange(1, 50).Draw(t, "with, ms")) * time.Millisecond
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		j := job{
			with: with, without: time.Duration(float64(with) * rapid.Float64Range(0.2, 20).Draw(t, "ratio")),
			step: rapid.IntRange(10, 1000).Draw(t, "units a step"), pause: time.Duration(rapid.IntRange(0, 2000).Draw(t, "pause, ms")) * time.Millisecond,
			noise: func() float64 { return 0.9 + 0.2*rng.Float64() },
		}
		tr, now := &Trial{}, time.Unix(int64(rapid.IntRange(1000, 1100).Draw(t, "begins")), 0)
		const during = 10 * time.Minute
		work, off := j.does(tr, during, &now)
		each := min(j.with, j.without) + j.pause/time.Duration(j.step)
		if best := float64(during) / float64(each); float64(work) < 0.8*best {
			t.Errorf("%d units of work, at best %.0f; off for %v, %+v", work, best, off, tr.Verdict())
		}
	})
}

// The number of pauses in a turn does not make the verdict, also where a step is longer than a turn.
func TestTrialOfAJobInSteps(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		j := job{
			with: 34 * time.Millisecond, without: 12 * time.Millisecond, step: 546, pause: 2 * time.Second,
			noise: func() float64 { return 0.9 + 0.2*rng.Float64() },
		}
		tr, now := &Trial{}, time.Unix(1000+int64(seed%15), 0)
		const during = 10 * time.Minute
		work, off := j.does(tr, during, &now)
		if best := float64(during) / float64(j.without+j.pause/time.Duration(j.step)); float64(work) < 0.8*best {
			t.Errorf("%d: %d units of work, at best %.0f; off for %v, %+v", seed, work, best, off, tr.Verdict())
		}
	}
}

// Where another way comes to be the better one it is found.
func TestTrialFollowsTheJob(t *testing.T) {
	slower, faster := job{with: 40 * time.Millisecond, without: 20 * time.Millisecond}, job{with: 10 * time.Millisecond, without: 20 * time.Millisecond}
	tr, now := &Trial{}, time.Unix(1000, 0)
	for range 3 {
		faster.does(tr, time.Hour, &now)
		if !tr.On() {
			t.Fatal("the measure is off although the job is faster with it")
		}
		slower.does(tr, time.Hour, &now)
		if tr.On() && !tr.UnderWay() {
			t.Fatal("the measure is on although the job is slower with it")
		}
	}
}

// What is worse is tried ever more seldom, and for five seconds at most.
func TestTrialsCostLittle(t *testing.T) {
	tr, now := &Trial{}, time.Unix(1000, 0)
	_, off := job{with: 10 * time.Millisecond, without: time.Second}.does(tr, 4*time.Hour, &now)
	if off == 0 || off > 25*5*time.Second {
		t.Errorf("the measure was off for %v in four hours", off)
	}
}

// Hosts of a job try at the same time, also where one has begun later, and tries more often.
func TestTrialsOfHostsAreAligned(t *testing.T) {
	j := job{with: 10 * time.Millisecond, without: 20 * time.Millisecond}
	early, late := &Trial{}, &Trial{}
	now, then := time.Unix(1000, 0), time.Unix(1070, 2e6)
	j.does(early, then.Sub(now), &now)
	together := 0
	for range 6000 {
		const tick = 100 * time.Millisecond
		_, one := j.does(early, tick, &now)
		_, other := j.does(late, tick, &then)
		if one > 0 && other > 0 {
			together++
		} else if one > tick/2 && other == 0 {
			t.Fatal("the one that tries less often tries alone")
		}
	}
	if together == 0 {
		t.Error("they never try together")
	}
}

// Of several measures of a job one is tried at a time, and one whose work has ended does not keep the others
// from it.
func TestOneTrialAtATime(t *testing.T) {
	among := &Trials{}
	var all []*Trial
	for range 3 {
		all = append(all, &Trial{Among: among})
	}
	now, last := time.Unix(1000, 0), -1
	var tried [3]int
	for range 100_000 {
		now = now.Add(10 * time.Millisecond)
		under := -1
		for i, tr := range all {
			tr.Use(1)
			tr.Step(now, 1, true)
			if tr.UnderWay() {
				if under >= 0 {
					t.Fatalf("measures %d and %d are tried at a time", under, i)
				}
				under = i
			}
		}
		if under >= 0 && under != last {
			tried[under]++
		}
		last = under
	}
	for i, n := range tried {
		if n < 3 {
			t.Errorf("measure %d was tried %d times: %v", i, n, tried)
		}
	}
	for !all[0].UnderWay() {
		now = now.Add(10 * time.Millisecond)
		all[0].Use(1)
		all[0].Step(now, 1, true)
	}
	for range 400_000 { // the first one's job is over
		now = now.Add(10 * time.Millisecond)
		all[1].Use(1)
		if all[1].Step(now, 1, true); all[1].UnderWay() {
			all[0].Step(now, 1, true)
			if all[0].UnderWay() {
				t.Error("two are under way")
			}
			return
		}
	}
	t.Error("a trial of a job that is over keeps the others from theirs")
}

func TestNoTrial(t *testing.T) {
	var none *Trial
	none.Use(1)
	none.Step(time.Unix(1, 0), 1, true)
	if !none.On() {
		t.Error("without a trial the measure is off")
	}
}

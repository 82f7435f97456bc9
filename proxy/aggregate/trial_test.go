package aggregate

import (
	"testing"
	"time"
)

// played is a job's pushes, which are answered after so long each, summed or one by one.
type played struct {
	trial        trial
	now          time.Time
	host, single func(at time.Duration) time.Duration
	idle         bool // nothing is ever summed
	waited       [2]time.Duration
}

// run has pushes answered for so long, and returns the share of time in which they went
// one by one.
func (p *played) run(during time.Duration) float64 {
	if p.now.IsZero() {
		p.now = time.Unix(1000, 0)
	}
	start := p.now
	p.waited = [2]time.Duration{}
	for p.now.Sub(start) < during {
		off := p.trial.isOff()
		took, i := p.host(p.now.Sub(start)), 0
		if off {
			took, i = p.single(p.now.Sub(start)), 1
		} else if !p.idle {
			p.trial.sums()
		}
		p.now = p.now.Add(took)
		p.waited[i] += took
		p.trial.answered(p.now)
	}
	return float64(p.waited[1]) / float64(during)
}

func every(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}

// Pushes are summed where that is not slower, and go one by one where it is; what is
// worse is hardly tried.
func TestTrial(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		host, single time.Duration
		idle, off    bool
	}{
		"sums are sooner":      {host: 5 * ms, single: 20 * ms},
		"the same":             {host: 20 * ms, single: 20 * ms},
		"a little later":       {host: 21 * ms, single: 20 * ms},
		"sums are later":       {host: 25 * ms, single: 20 * ms, off: true},
		"much later":           {host: 800 * ms, single: 10 * ms, off: true},
		"nothing is summed":    {host: 25 * ms, single: 20 * ms, idle: true},
		"few pushes, sooner":   {host: 300 * ms, single: 400 * ms},
		"few pushes, later":    {host: 600 * ms, single: 400 * ms, off: true},
		"singly out of bounds": {host: 10 * ms, single: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := played{host: every(c.host), single: every(c.single), idle: c.idle}
			p.run(2 * time.Hour)
			share := p.run(time.Hour)
			if c.off && share < 0.9 || !c.off && share > 0.1 {
				t.Errorf("pushes go one by one for %.2f of the time", share)
			}
			if wrong := p.waited[0]; c.off && wrong > 6*time.Minute {
				t.Errorf("pushes were summed for %v", wrong)
			}
		})
	}
}

// A pause of the job, whatever turn it falls into, is no verdict, and where another way
// comes to be the better one it is found.
func TestTrialAgain(t *testing.T) {
	pause := func(at time.Duration) time.Duration {
		if at%(97*time.Second) < 30*time.Millisecond {
			return 9 * time.Second
		}
		return 20 * time.Millisecond
	}
	p := played{host: pause, single: pause}
	if share := p.run(4 * time.Hour); share > 0.05 {
		t.Errorf("with pauses pushes go one by one for %.2f of the time", share)
	}
	p.host, p.single = every(40*time.Millisecond), every(20*time.Millisecond)
	p.run(time.Hour)
	if !p.trial.off {
		t.Error("sums that have become slower are kept")
	}
	p.host = every(10 * time.Millisecond)
	p.run(time.Hour)
	if p.trial.off {
		t.Error("sums that have become sooner are not made")
	}
}

// A nil trial sums always.
func TestNoTrial(t *testing.T) {
	var none *trial
	none.sums()
	none.answered(time.Now())
	if none.isOff() {
		t.Error("without a trial pushes go one by one")
	}
}

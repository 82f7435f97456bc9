package agent

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// adaptEvery is how often the cost is measured and the sampling adapted.
const adaptEvery = time.Second

// StartOneIn is where an adapted sampling should start: sparse, so that nothing
// is disturbed before the cost is known. It gets denser every second.
const StartOneIn = 16

// maxOneIn is the sparsest sampling.
const maxOneIn = 4096

// cost is what the agent takes, as measured from one look to the next.
type cost struct {
	mu      sync.Mutex
	at      time.Time
	cpu     float64 // seconds of the agent so far
	kernel  float64 // seconds of the programs so far
	percent float64 // of one core, of the agent, lately
	inside  float64 // of one core, of the programs, lately
}

// adapt measures what the agent takes and changes the sampling accordingly.
func (a *Agent) adapt() error {
	programs, err := a.capture.ProgramStats()
	if err != nil {
		return err
	}
	kernel := 0.0
	for _, p := range programs {
		kernel += p.RunTime.Seconds()
	}
	cpu, err := a.seconds()
	if err != nil {
		return err
	}
	used, known := a.cost.note(time.Now(), cpu, kernel)
	if !known || a.opts.Sampling.Budget <= 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := nextOneIn(a.sampling.OneIn, used, a.opts.Sampling.Budget)
	if next == a.sampling.OneIn {
		return nil
	}
	changed := a.sampling
	changed.OneIn = next
	if err := a.capture.SetSampling(changed); err != nil {
		return err
	}
	a.sampling = changed
	a.rate.Store(next)
	return nil
}

// note takes the seconds used so far and returns the percent of one core used
// since the last time, programs included.
func (c *cost) note(now time.Time, cpu, kernel float64) (percent float64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known = !c.at.IsZero(); known {
		seconds := now.Sub(c.at).Seconds()
		c.percent = 100 * (cpu - c.cpu) / seconds
		c.inside = 100 * (kernel - c.kernel) / seconds
	}
	c.at, c.cpu, c.kernel = now, cpu, kernel
	return c.percent + c.inside, known
}

// nextOneIn returns the sampling for the next second: twice as sparse while
// the cost is above the budget (several times so where it is far above), twice
// as dense when even twice the cost would stay well below it.
func nextOneIn(oneIn uint32, percent, budget float64) uint32 {
	switch {
	case percent > budget:
		for oneIn < maxOneIn && percent > budget {
			oneIn *= 2
			percent /= 2
		}
	case percent < 0.4*budget && oneIn > 1:
		oneIn /= 2
	}
	return oneIn
}

// seconds returns the CPU time that the agent has taken: its process's, or
// where it shares that with others its reading thread's, which does nearly all
// of the work.
func (a *Agent) seconds() (float64, error) {
	if !a.opts.WithProxy {
		return processSeconds()
	}
	thread := a.reader.Load()
	if thread == 0 {
		return 0, nil // does not read yet
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", thread))
	if err != nil {
		return 0, fmt.Errorf("reading the agent's CPU time: %w", err)
	}
	var nanos uint64
	if _, err := fmt.Sscan(string(text), &nanos); err != nil {
		return 0, fmt.Errorf("reading the agent's CPU time from %q: %w", text, err)
	}
	return float64(nanos) / 1e9, nil
}

// processSeconds returns the CPU time that this process has taken.
func processSeconds() (float64, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("reading the agent's CPU time: %w", err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, nil
}

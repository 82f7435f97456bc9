package agent

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/bpf"
)

// adaptEvery is the interval at which the cost is measured and the sampling adapted.
const adaptEvery = time.Second

// StartOneIn and StartWindow are the sampling of a connection whose job, and whose cost, is not
// known yet, which takes a second or two. They are sparse enough to disturb little, and dense
// enough not to miss the beginning of a slow job.
const (
	StartOneIn  = 4
	StartWindow = 4
)

// adapt measures the agent's cost and the part of it that goes into keys, and sets the sampling
// of each job accordingly. Measurement goes on without a budget, for the page; only the rates
// are then left alone. It runs in a loop of its own.
func (a *Agent) adapt() error {
	programs, err := a.capture.ProgramStats()
	if err != nil {
		return err
	}
	// The programs' run time is spent in the context of whichever process sent the segment, so
	// it is in no process's CPU time.
	kernel, runs := 0.0, uint64(0)
	for _, p := range programs {
		kernel, runs = kernel+p.RunTime.Seconds(), runs+p.Runs
	}
	reader, err := a.readerSeconds()
	if err != nil { // usually for want of file descriptors
		slog.Warn("sampling stays as it is until the cost of watching is known", "error", err)
		return nil
	}
	cpu, err := a.seconds(reader)
	if err != nil {
		return err
	}
	now := time.Now()
	a.cost.updateCost(now, cpu, kernel)
	// The controller works on totals rather than on differences, so that a turn that comes late
	// or is left out costs no accuracy.
	jobs, keys := map[string]sampleSeen{}, uint64(0)
	for at, looked := range a.observer.Looked() {
		jobs[at.String()] = seen(looked)
		keys += looked.KeyBytes
	}
	nanos := a.timer.keys.Load()
	a.traffic.add(time.Duration((kernel+reader-kernelNanosPerByte*1e-9*float64(keys))*1e9)-time.Duration(nanos), runs, a.decided.RestOf)
	decided := a.controller.Decide(sampleLook{
		At: now, KeyNanos: nanos, Total: time.Duration((cpu + kernel) * 1e9), Traffic: a.traffic.took, Whole: a.traffic.whole, Jobs: jobs,
	})
	a.sayOverBudget(decided)
	if a.opts.Sampling.Budget > 0 {
		a.allowed.Store(math.Float64bits(a.controller.allowed()))
	}
	a.mu.Lock()
	a.decided = decided
	a.mu.Unlock()
	// A fixed rate: only the figures are of interest.
	if a.opts.Sampling.Budget <= 0 {
		return nil
	}
	return a.setRates(decided)
}

// seen converts what was looked at to the form that the controller takes.
func seen(l observe.Looked) sampleSeen {
	s := sampleSeen{Requests: l.Requests, Sampled: l.Sampled, KeyBytes: l.KeyBytes, AllBytes: l.AllBytes, Clocks: map[sampleClock]int32{}}
	for c, highest := range l.Clocks {
		s.Clocks[sampleClock(c)] = highest
	}
	return s
}

// sayOverBudget logs when the budget can no longer be met, and when it is met again.
func (a *Agent) sayOverBudget(d sampleDecision) {
	a.mu.Lock()
	was := a.decided.Over
	a.mu.Unlock()
	switch {
	case d.Over && !was:
		slog.Warn("watching exceeds --cpu-budget, although as little is inspected as can be",
			"percent_lately", fmt.Sprintf("%.2f", d.Percent), "budget", a.opts.Sampling.Budget)
	case was && !d.Over:
		slog.Info("watching is within --cpu-budget again", "percent", fmt.Sprintf("%.2f", d.Percent), "budget", a.opts.Sampling.Budget)
	}
}

// setRates sets the kernel's rate for every stream of each job. Streams whose rate is already
// set cost no system call; streams that are gone drop out of a.rates. The observer must know
// the rate first: it weighs requests that come without one.
func (a *Agent) setRates(d sampleDecision) error {
	open := a.observer.StreamsByJob()
	a.mu.Lock()
	busy := a.busy
	a.mu.Unlock()
	now := make(map[bpf.StreamID]streamRate, len(a.rates))
	for name, rate := range d.Jobs {
		a.observer.SetOneIn(name, rate.OneIn)
		for _, s := range open[name] {
			// A recording has no gaps.
			// Rebuilt from the open streams each time, which is how closed ones drop out.
			if !s.Timing {
				now[s.ID] = streamRate{rate.sampleRate, now[s.ID].rests}
			}
			// A recording has no gaps.
			if d.RestOf > 1 && s.Data && busy[s.ID].rests && a.opts.Uses == nil {
				now[s.ID.Egress()] = streamRate{rate.sampleRate, true}
			}
		}
	}
	for id, r := range now {
		if a.rates[id] != r {
			if err := a.capture.SetRate(id, r.Window, r.OneIn, r.rests); err != nil {
				return err
			}
		}
	}
	for id, r := range a.rates {
		if _, there := now[id]; !there && r.rests {
			if err := a.capture.ResetRate(id); err != nil {
				return err
			}
		}
	}
	// Only now: after an error all streams of this turn are set again.
	a.rates = now
	a.restOf.Store(d.RestOf)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resting = now
	return nil
}

// A streamRate is how one stream is watched.
type streamRate struct {
	sampleRate
	rests bool
}

// cost is the processor time of the agent and of its BPF programs.
type cost struct {
	mu      sync.Mutex // guards the rest
	at      time.Time  // of the last measurement; zero: never
	cpu     float64    // seconds of the agent so far
	kernel  float64    // seconds of the programs so far
	percent float64    // of one core, of the agent, since the measurement before
	inside  float64    // of one core, of the programs, likewise
}

// updateCost records the seconds used so far and derives the percentages.
func (c *cost) updateCost(now time.Time, cpu, kernel float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() {
		seconds := now.Sub(c.at).Seconds()
		c.percent = 100 * (cpu - c.cpu) / seconds
		c.inside = 100 * (kernel - c.kernel) / seconds
	}
	c.at, c.cpu, c.kernel = now, cpu, kernel
}

// messageCost adds up what messages cost apart from their keys. It belongs to adapt.
type messageCost struct {
	last  time.Duration // the counter, which may fall back a little where it is estimated
	runs  uint64        // of the programs
	took  time.Duration
	whole time.Duration // as if there had been no rests
}

// passNanos is what a run of a program takes that looks at nothing.
const passNanos = 60

// add takes the counters. Since the last call streams were watched for one part in of of the time.
func (t *messageCost) add(now time.Duration, runs uint64, of uint32) {
	took, pass := max(now-t.last, 0), time.Duration(passNanos*(runs-t.runs))
	t.last, t.runs = max(now, t.last), runs
	t.took += took
	t.whole += max(took, pass+time.Duration(max(of, 1))*(took-pass))
}

// seconds returns the agent's CPU time: its process's or, if the process is the host's proxy
// too, that of the reading thread and of the loops.
func (a *Agent) seconds(reader float64) (float64, error) {
	// In a process with the proxy, carrying connections would dwarf the cost of watching them,
	// and the budget would have nothing to do with it.
	if a.opts.WithProxy {
		return reader + time.Duration(a.loops.Load()).Seconds(), nil
	}
	return processSeconds()
}

// readerSeconds returns the CPU time of the thread that reads the capture.
func (a *Agent) readerSeconds() (float64, error) {
	thread := a.reader.Load()
	if thread == 0 {
		return 0, nil // not reading yet
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

// processSeconds returns the CPU time of this process, user and system.
func processSeconds() (float64, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("reading the agent's CPU time: %w", err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, nil
}

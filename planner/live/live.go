// Package live plans for jobs that run: it gathers what agents report, asks a
// strategy now and then what should move, and proposes that.
//
// In come agents' reports ([Planner.Take]); out go proposals to the service
// that carries them out ([plans.Service]), and what came of them. The command
// psidecar planner runs it.
package live

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/planner/plans"
)

// Options say how to plan.
type Options struct {
	// Strategy is one of [Strategies].
	Strategy string
	// Horizon is the number of steps in which a move must pay back.
	Horizon float64
	// Every is how often is decided.
	Every time.Duration
	// KeyBytes is what a key takes in a message; 8 in PS-lite.
	KeyBytes float64
	// MaxItems is how many keys of a job are looked at one by one. Where it has more,
	// those count that are used again, and those that were not for long are forgotten.
	MaxItems int
	// MaxMoves is how many keys a plan moves at most.
	MaxMoves int
}

// DefaultOptions are those of psidecar planner.
var DefaultOptions = Options{Strategy: "locality", Horizon: 200, Every: 5 * time.Second, KeyBytes: 8, MaxItems: 2 << 20, MaxMoves: 1 << 16}

// Strategies are those that can plan for a job that runs.
func Strategies() []string { return []string{"locality", "dppa", "off"} }

// Check returns the first fault of the options, by the names of the flags.
func (o Options) Check() error {
	switch {
	case !slices.Contains(Strategies(), o.Strategy):
		return fmt.Errorf("strategy %q: want one of %v", o.Strategy, Strategies())
	case o.Horizon <= 0:
		return fmt.Errorf("horizon of %v steps: want more than 0", o.Horizon)
	case o.Every < time.Second:
		return fmt.Errorf("a decision every %v: want a second or more, since agents report every other one", o.Every)
	}
	return nil
}

// A Planner plans for all jobs. Its methods may be called from any goroutine; one
// decision is made at a time.
//
// Locks are acquired in this order: deciding, mu, a job's mu, those of the service. Of
// two jobs' only one is held at a time.
type Planner struct {
	opts    Options
	service *plans.Service
	shifted chan struct{} // some job's workers use other keys, or its plan goes on

	deciding sync.Mutex // held by who decides
	mu       sync.Mutex // guards jobs
	jobs     map[string]*job
}

// New returns a planner that knows of no job.
func New(service *plans.Service, opts Options) *Planner {
	return &Planner{opts: opts, service: service, jobs: map[string]*job{}, shifted: make(chan struct{}, 1)}
}

// Take takes in what an agent reports. It keeps nothing of the report.
func (p *Planner) Take(r *api.HostReport) {
	if p.opts.Strategy == "off" {
		return
	}
	for _, report := range r.GetJobs() {
		j := p.jobOf(report.GetJob())
		if j == nil {
			continue
		}
		if shifted := j.take(r.GetHost(), r.GetMachine().GetLinkMbit(), report); shifted {
			p.wake()
		}
	}
}

// wake has Run react.
func (p *Planner) wake() {
	select {
	case p.shifted <- struct{}{}:
	default:
	}
}

// jobOf returns a job, made where it is new; nil where there is no room for one more.
func (p *Planner) jobOf(name string) *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[name]
	if j == nil {
		if len(p.jobs) >= plans.MaxJobs && !p.forgetOne() {
			return nil
		}
		j = newJob(name, p.opts)
		p.jobs[name] = j
	}
	return j
}

// all returns the jobs, by name.
func (p *Planner) all() []*job {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.jobs), func(a, b *job) int { return strings.Compare(a.name, b.name) })
}

// forgetOne makes room: it drops a job that has been silent for the longest. p.mu is
// held.
func (p *Planner) forgetOne() bool {
	oldest, since, silent := "", int64(0), false
	for name, j := range p.jobs {
		j.mu.Lock()
		if oldest == "" || j.last < since {
			oldest, since, silent = name, j.last, j.idle > 0
		}
		j.mu.Unlock()
	}
	if !silent {
		return false
	}
	delete(p.jobs, oldest)
	return true
}

// Where workers turn to other keys it is decided gather later, when most of them
// have told; where that has to wait, it is tried again in retry. Of the time no
// more than one part in rest+1 is spent on that, where it takes no longer than
// longest/rest each time. Jobs of a thousand hosts take longer: for them it is about
// half, for as long as their workers turn, since those who told late wait for the
// second decision.
const (
	gather  = 150 * time.Millisecond
	retry   = 200 * time.Millisecond
	rest    = 4
	longest = time.Second
)

// after returns for how long no other decision is made after one that took so long.
func after(took time.Duration) time.Duration { return min(rest*took, longest) }

// Run decides now and then, and where workers turn to other keys, until ctx ends.
func (p *Planner) Run(ctx context.Context) error {
	if p.opts.Strategy == "off" {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(p.opts.Every)
	defer ticker.Stop()
	soon := time.NewTimer(0)
	defer soon.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			p.Decide(ctx)
		case <-p.shifted:
			soon.Reset(gather)
		case <-soon.C:
			waits, took := p.react(ctx)
			if waits {
				soon.Reset(max(retry, after(took)))
			} else if err := pause(ctx, after(took)); err != nil {
				return nil
			}
		}
	}
}

// Decide has every job looked at once.
func (p *Planner) Decide(ctx context.Context) {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	for _, j := range p.all() {
		p.decide(ctx, j)
	}
}

// react looks at the jobs whose workers turned to other keys. It reports whether
// some must wait until the keys have moved that are moving, and how long it took to
// look at others.
func (p *Planner) react(ctx context.Context) (waits bool, took time.Duration) {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	for _, j := range p.all() {
		if !j.turned() {
			continue
		}
		if moving, _ := p.service.Busy(j.name); moving {
			waits = true
			continue
		}
		took += p.decide(ctx, j)
	}
	return waits, took
}

// decide looks at one job, and returns how long that took. p.deciding is held.
func (p *Planner) decide(ctx context.Context, j *job) time.Duration {
	others := p.paces(j)
	j.mu.Lock()
	defer j.mu.Unlock()
	began := time.Now()
	trouble, err := j.decide(ctx, p.service, j.elsewhere(others))
	if err != nil {
		slog.Error("planning", "job", j.name, "error", err)
		trouble = err.Error()
	}
	p.service.Trouble(ctx, j.name, j.servers, trouble)
	if j.goesOn { // as soon as the plan is carried out
		j.goesOn, j.shifted = false, true
		p.wake()
	}
	return time.Since(began)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// moveOverhead is what a move takes on the wire beside the key and the value that
// is pushed, where values are short: the pull that checks them, and the key in
// the messages by which all hosts hold its requests and learn its owner.
const moveOverhead = 100

// missedUses keeps keys that several hosts use at home until it is certain that
// one of them uses a key far more: each that is displaced among them makes their
// requests go in more parts.
const missedUses = 2

// strategy returns a new strategy for machines with links of these speeds.
func (o Options) strategy(machines int, barred []bool, speed []float64) (dynamic.Strategy, error) {
	d := dynamic.Options{Machines: machines, Barred: barred, Speed: speed}
	d.Locality.Horizon, d.Locality.MaxMoves = o.Horizon, o.MaxMoves
	d.Locality.Overhead, d.Locality.Missed = moveOverhead, missedUses
	return dynamic.New(o.Strategy, d)
}

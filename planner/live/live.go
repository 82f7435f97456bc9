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

// Check says what is wrong with the options; names are those of the flags.
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
// decision is made at a time. mu is acquired before locks of the service.
type Planner struct {
	opts    Options
	service *plans.Service

	mu      sync.Mutex // guards jobs, and all that they point to
	jobs    map[string]*job
	shifted chan struct{} // some job's workers use other keys
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
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, report := range r.GetJobs() {
		j := p.jobs[report.GetJob()]
		if j == nil {
			if len(p.jobs) >= plans.MaxJobs && !p.forgetOne() {
				continue
			}
			j = newJob(report.GetJob(), p.opts)
			p.jobs[report.GetJob()] = j
		}
		j.addReport(r.GetHost(), r.GetMachine().GetLinkMbit(), report)
		if report.GetWindow().GetShifted() {
			j.shifted = true
			select {
			case p.shifted <- struct{}{}:
			default:
			}
		}
	}
}

// forgetOne makes room: it drops a job that has been silent for the longest.
func (p *Planner) forgetOne() bool {
	oldest := ""
	for name, j := range p.jobs {
		if oldest == "" || j.last < p.jobs[oldest].last {
			oldest = name
		}
	}
	if oldest == "" || p.jobs[oldest].idle == 0 {
		return false
	}
	delete(p.jobs, oldest)
	return true
}

// Where workers turn to other keys it is decided gather later, when most of them
// have told; where that has to wait, it is tried again in retry. Of the time no
// more than one part in rest+1 is spent on that.
const (
	gather = 150 * time.Millisecond
	retry  = 200 * time.Millisecond
	rest   = 4
)

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
			began := time.Now()
			if waits := p.react(ctx); waits {
				soon.Reset(max(retry, rest*time.Since(began)))
			} else if err := pause(ctx, rest*time.Since(began)); err != nil {
				return nil
			}
		}
	}
}

// Decide has every job looked at once.
func (p *Planner) Decide(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.jobs)) {
		p.decide(ctx, p.jobs[name])
	}
}

// react looks at the jobs whose workers turned to other keys. It reports whether
// some must wait until the keys have moved that are moving.
func (p *Planner) react(ctx context.Context) (waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.jobs)) {
		j := p.jobs[name]
		if !j.shifted {
			continue
		}
		if moving, _ := p.service.Busy(name); moving {
			waits = true
			continue
		}
		p.decide(ctx, j)
	}
	return waits
}

func (p *Planner) decide(ctx context.Context, j *job) {
	trouble, err := j.decide(ctx, p.service, p.elsewhere(j))
	if err != nil {
		slog.Error("planning", "job", j.name, "error", err)
		trouble = err.Error()
	}
	p.service.Trouble(ctx, j.name, j.servers, trouble)
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

// strategy returns a new strategy for so many machines, with links of that speed.
func (o Options) strategy(machines int, barred []bool, speed []float64) (dynamic.Strategy, error) {
	d := dynamic.Options{Machines: machines, Barred: barred, Speed: speed}
	d.Locality.Horizon, d.Locality.MaxMoves = o.Horizon, o.MaxMoves
	d.Locality.Overhead, d.Locality.Missed = moveOverhead, missedUses
	return dynamic.New(o.Strategy, d)
}

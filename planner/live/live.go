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
	// MaxItems is how many keys of a job are looked at one by one; those that
	// come later stay where they are.
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

// A Planner plans for all jobs.
type Planner struct {
	opts    Options
	service *plans.Service

	mu   sync.Mutex
	jobs map[string]*job
}

// New returns a planner that knows of no job.
func New(service *plans.Service, opts Options) *Planner {
	return &Planner{opts: opts, service: service, jobs: map[string]*job{}}
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
		j.take(r.GetHost(), report)
		j.links[j.machine[r.GetHost()]] = r.GetMachine().GetLinkMbit()
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

// Run decides now and then, until ctx ends.
func (p *Planner) Run(ctx context.Context) error {
	if p.opts.Strategy == "off" {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(p.opts.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			p.Decide(ctx)
		}
	}
}

// Decide has every job looked at once.
func (p *Planner) Decide(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.jobs)) {
		j := p.jobs[name]
		switch trouble, err := j.decide(ctx, p.service); {
		case err != nil:
			slog.Error("planning", "job", name, "error", err)
			p.service.Trouble(name, j.servers, err.Error())
		default:
			p.service.Trouble(name, j.servers, trouble)
		}
	}
}

// strategy returns a new strategy for so many machines, with links of that speed.
func (o Options) strategy(machines int, barred []bool, speed []float64) (dynamic.Strategy, error) {
	d := dynamic.Options{Machines: machines, Barred: barred, Speed: speed}
	d.Locality.Horizon, d.Locality.MaxMoves = o.Horizon, o.MaxMoves
	return dynamic.New(o.Strategy, d)
}

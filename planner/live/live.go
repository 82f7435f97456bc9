// Package live plans for jobs that run. It collects the uses of keys that agents report, asks a
// strategy at intervals what should move, and proposes that as a plan.
//
// Reports come in through [Planner.Take], proposals go to [plans.Service], which carries them out.
// One decision for a job goes like this (job.decide):
//
//   - bring the owners of its keys up to date with plans (place.go);
//   - turn what its workers used since the last decision into a [dynamic.Epoch] (uses.go);
//   - measure the last plan with these uses, if it has been carried out (judge);
//   - let the strategy plan, and propose its moves if they gain enough.
//
// Decisions are made every Options.Every, and soon after an agent reports that a worker has turned
// to other keys. Memory is bounded: a job has at most Options.MaxItems keys that are looked at one
// by one (forget.go).
//
// A job's reports are of one run. When another run begins everything that is known of its keys is
// dropped, since all of them are at home again.
package live

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/planner/plans"
)

// Options configure planning for jobs that run.
type Options struct {
	// Strategy is one of [Strategies].
	Strategy string
	// Horizon is the number of steps within which a move must pay for itself.
	Horizon float64
	// Every is the interval between decisions.
	Every time.Duration
	// KeyBytes is the size of a key in a message; 8 in PS-lite.
	KeyBytes float64
	// MaxItems is how many keys of a job are looked at one by one. If it has more, keys get a place
	// when they are used again, and lose it when they have not been used for long.
	MaxItems int
	// MaxMoves is how many keys a plan moves at most.
	MaxMoves int
}

// DefaultOptions are the defaults of psidecar planner.
var DefaultOptions = Options{Strategy: "locality", Horizon: 200, Every: 5 * time.Second, KeyBytes: 8, MaxItems: 2 << 20, MaxMoves: 1 << 16}

// Strategies returns the strategies that can plan for a running job. "off" plans nothing.
func Strategies() []string { return []string{"locality", "dppa", "off"} }

// Check returns the first fault of the options, in terms of the flags, nil if there is none.
func (o Options) Check() error {
	switch {
	case !slices.Contains(Strategies(), o.Strategy):
		return fmt.Errorf("strategy %q: want %s", o.Strategy, strings.Join(Strategies(), ", "))
	case o.Horizon <= 0:
		return fmt.Errorf("horizon of %v steps: want more than 0", o.Horizon)
	case o.Every < time.Second:
		return fmt.Errorf("decision interval %v: want a second or more", o.Every)
	}
	return nil
}

// A Planner plans for all jobs. Its methods may be called from any goroutine; for a job, decisions
// are made one at a time, while several jobs may be decided at once.
//
// Lock order: deciding, mu, a job's mu, the locks of the service. No goroutine holds the mutexes of
// two jobs. A decision holds its job's mutex throughout, so reports of that job wait for it, and
// reports of other jobs do not.
type Planner struct {
	opts    Options
	service *plans.Service
	// shifted has room for one wake-up of Run: workers of some job have turned to other keys, or a
	// plan can be continued.
	shifted chan struct{}

	// Held while jobs are decided.
	deciding sync.Mutex
	mu       sync.Mutex // guards jobs
	jobs     map[string]*job
}

// New returns a planner that knows no job.
func New(service *plans.Service, opts Options) *Planner {
	return &Planner{opts: opts, service: service, jobs: map[string]*job{}, shifted: make(chan struct{}, 1)}
}

// Take accepts a report with its windows of uses. It keeps nothing of the report. It blocks while a
// decision for one of its jobs is being made.
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

// wake makes Run react soon. It does not block.
func (p *Planner) wake() {
	select {
	case p.shifted <- struct{}{}:
	default:
	}
}

// jobOf returns a job, which is created if it is new, or nil if there is no room for it.
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

// forgetOne drops the job that has been silent for the longest, unless that has been used since its
// last decision. It reports whether there is room now. The caller holds p.mu.
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

// Run makes decisions until ctx ends: periodically, and when workers turn to other keys.
func (p *Planner) Run(ctx context.Context) error {
	if p.opts.Strategy == "off" {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(p.opts.Every)
	defer ticker.Stop()
	soon := time.NewTimer(0)
	defer soon.Stop()
	pace, next := newPacer(time.Now()), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if now.Before(next) {
				continue
			}
			took := p.decideBefore(ctx, now.Add(-p.opts.Every/2))
			next = now.Add(min(took*regularRest, longestRest))
		case <-p.shifted:
			soon.Reset(pace.told(time.Now()))
		case <-soon.C:
			if wait := pace.wait(time.Now()); wait > 0 {
				soon.Reset(wait)
				continue
			}
			waits, took := p.react(ctx)
			pace.decided(time.Now(), took)
			if waits {
				soon.Reset(retry)
			}
		}
	}
}

// Decide makes a decision for every job.
func (p *Planner) Decide(ctx context.Context) { p.decideBefore(ctx, time.Time{}) }

// Regular decisions take at most one part in regularRest of the time, but there is one every
// longestRest.
const (
	regularRest = 400
	longestRest = 30 * time.Second
)

// decideBefore makes a regular decision for every job, except for those for which one has been made
// since that time because workers turned to other keys, and returns the time that they took. A zero
// time excepts none.
func (p *Planner) decideBefore(ctx context.Context, since time.Time) time.Duration {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	return p.decideAll(ctx, slices.DeleteFunc(p.all(), func(j *job) bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.round++
		return !since.IsZero() && j.decided.After(since)
	}))
}

// react makes a decision for the jobs whose workers have turned to other keys, and for those whose
// plan goes on. waits is set if some of them must wait until their plan has been carried out, or
// rest. took is the time spent on the others.
func (p *Planner) react(ctx context.Context) (waits bool, took time.Duration) {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	var turned []*job
	for _, j := range p.all() {
		soon, after := j.hurries()
		if !soon {
			continue
		}
		if moving, _ := p.service.Busy(j.name); moving || p.rests(j.name, after) {
			waits = true
			continue
		}
		turned = append(turned, j)
	}
	return waits, p.decideAll(ctx, turned)
}

// rests reports whether a job rests after a plan of many groups that goes on: for as long as that was
// carried out. A large job always has more moves than fit a plan. Without a rest the messages for
// them would take what time the planner has, and workers that turn to other keys would always find
// a plan under way.
func (p *Planner) rests(job string, epoch uint64) bool {
	e := p.service.Epoch(job, epoch)
	return e != nil && time.Now().UnixNano() < 2*e.GetEndedUnixNanos()-e.GetAppliedUnixNanos()
}

// decideAll makes a decision for each of the jobs, as many at once as there are cores, and returns
// the sum of the times that they took. The caller holds p.deciding.
func (p *Planner) decideAll(ctx context.Context, jobs []*job) time.Duration {
	var took atomic.Int64
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, j := range jobs {
		g.Go(func() error {
			took.Add(int64(p.decide(ctx, j)))
			return nil
		})
	}
	_ = g.Wait() // none fails
	return time.Duration(took.Load())
}

// decide makes one decision for a job, publishes the reason if nothing can be planned, and returns
// how long it took. The caller holds p.deciding.
func (p *Planner) decide(ctx context.Context, j *job) time.Duration {
	// This locks the other jobs one by one, so it must precede locking this one.
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
	if j.goesOn {
		p.wake()
	}
	return time.Since(began)
}

// moveOverhead is what a move takes on the wire, in bytes, beside the key and value that are
// pushed, if values are short: the pull that verifies them, and the key in the messages by which
// all hosts hold its requests and learn its owner.
const moveOverhead = 100

// missedUses keeps a key that several hosts use at home until it is certain that one of them uses
// it far more: each displaced key among those of a request splits the request into more parts.
const missedUses = 2

// strategy returns a new strategy for that many machines. speed are the speeds of their links, nil
// if unknown.
func (o Options) strategy(machines int, barred []bool, speed []float64) (dynamic.Strategy, error) {
	d := dynamic.Options{Machines: machines, Barred: barred, Speed: speed}
	d.Locality.Horizon, d.Locality.MaxMoves = o.Horizon, o.MaxMoves
	d.Locality.Overhead, d.Locality.Missed = moveOverhead, missedUses
	return dynamic.New(o.Strategy, d)
}

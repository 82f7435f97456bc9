// Package plans is the planner's memory of where keys are and its word on where
// they shall be.
//
// In come plans ([Service.Propose]), what proxies did (gRPC, service Plans of
// package api), and the commands of people. Out go moves to the proxies, the owner
// of every key, and an account of each plan. Durable state goes to a [store.Store]
// before anybody hears of it: the store decides the owner of a key, whatever
// happens to planner and proxies.
package plans

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/store"
)

// Bounds of the state that is kept.
const (
	// MaxJobs is how many jobs may have plans.
	MaxJobs = 1024
	// MaxEpochs is how many plans of a job are remembered.
	MaxEpochs = 64
	// MaxRanges is how many ranges of keys a plan may move.
	MaxRanges = 4 << 20
	// MaxRecord is how many ranges one Record may have.
	MaxRecord = 8192
	// MaxServers is how many servers a job may have.
	MaxServers = 4096
)

// Options say how plans are carried out.
type Options struct {
	// Act: a proposed plan is carried out at once, unless the job is held.
	Act bool
	// Scheduler, where not nil, returns the address of the scheduler of a job that is
	// asked for by its name, and any other text as it is.
	Scheduler func(name string) string
	// Title, where not nil, returns what a job is called in metrics, by its scheduler's
	// address; current: it is the newest that is called so.
	Title func(job string) (name string, current bool)
	// Wish, where not nil, returns what the owner of a job asks for, true or false, which
	// comes before Act; empty: nothing.
	Wish func(job string) string
	// Forgetful: the store does not outlive the planner. Then nothing is ever
	// moved, since after a restart nobody would know where.
	Forgetful bool
	// Strategy names what makes the plans, for people.
	Strategy string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Log gets events of stores and runs; nil: slog.Default().
	Log *slog.Logger
}

// A Service keeps the plans of all jobs. It implements api.PlansServer.
//
// Locks are acquired in this order: the mutexes of runs, several of them in the order
// of allRuns; then one run's queueMu, or the service's mutex. A write to the store is
// made while the run's mutex is held, so that watchers hear of changes in the order in
// which they are on disk, and after that.
//
// Invariants: a job's newest run, in jobs, is in runs too; watching has the watchers
// of watchers, and no empty set.
type Service struct {
	api.UnimplementedPlansServer

	opts     Options
	store    store.Store
	logSlack int

	id         string      // of the store
	identified atomic.Bool // it is in the store

	mu       sync.Mutex // guards the rest
	runs     map[runKey]*job
	jobs     map[string]*job // the newest run of each
	watchers map[*watcher]bool
	watching map[string]map[*watcher]bool // the same by host, in small letters
	// audiences are watchers by run, as far as it was asked since some came or left.
	audiences map[runKey]*audience
}

// New returns a service with all that the store has.
func New(ctx context.Context, s store.Store, opts Options) (*Service, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	service := &Service{
		opts: opts, store: s, logSlack: logSlack, id: newID(),
		runs: map[runKey]*job{}, jobs: map[string]*job{}, watchers: map[*watcher]bool{}, watching: map[string]map[*watcher]bool{}, audiences: map[runKey]*audience{},
	}
	if err := service.load(ctx); err != nil {
		return nil, fmt.Errorf("reading the plans: %w", err)
	}
	return service, nil
}

// find returns the newest run of the job of that name.
func (s *Service) find(name string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[name]; j != nil {
		return j, nil
	}
	return nil, status.Errorf(codes.NotFound, "job %q has no plan", name)
}

// findRun returns that run of a job.
func (s *Service) findRun(name, run string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.runs[runKey{name, plan.Run(run)}]; j != nil {
		return j, nil
	}
	return nil, status.Errorf(codes.NotFound, "job %q has no plan for run %q", name, run)
}

// allRuns returns all runs of all jobs, in the order in which they are locked
// together.
func (s *Service) allRuns() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.runs), func(a, b *job) int { return a.key().compare(b.key()) })
}

// newestRuns returns the newest runs of the jobs by name.
func (s *Service) newestRuns() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var jobs []*job
	for _, name := range slices.Sorted(maps.Keys(s.jobs)) {
		jobs = append(jobs, s.jobs[name])
	}
	return jobs
}

// openJob returns the newest run of the job of that name; where there is none, one
// that nobody has named.
func (s *Service) openJob(ctx context.Context, name string, servers int) (*job, error) {
	return s.openRun(ctx, runKey{name, s.Run(name)}, servers)
}

// Proposal is a plan: for each range of keys the server that shall own it.
type Proposal struct {
	Job string
	// Run is the run that it was made for; empty: the newest.
	Run     plan.Run
	Servers int
	// Reason says in words why it was made.
	Reason string
	// Targets need not ascend; their owners are ranks. Those that are there
	// already are left out of the plan.
	Targets []plan.Range
	// Hosts are what each machine moves in a step now, and would then.
	Hosts []*api.HostLoad
	// MigrationBytes is what the moves cost, HorizonSteps the number of steps
	// over which they are to pay.
	MigrationBytes, HorizonSteps float64
}

// Propose takes a plan in, in place of one that was proposed before and not
// applied, and carries it out where the options say so. It returns the plan's
// epoch, 0 where no key would move.
func (s *Service) Propose(ctx context.Context, p Proposal) (uint64, error) {
	if p.Run == "" {
		p.Run = s.Run(p.Job)
	}
	if p.Run < s.Run(p.Job) {
		return 0, nil // that run is over
	}
	j, err := s.openRun(ctx, runKey{p.Job, p.Run}, p.Servers)
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.check(p); err != nil {
		return 0, err
	}
	return j.propose(ctx, p)
}

// Where is where the keys of a job's newest run are: Owners has the displaced ones,
// none where the run has no plan. Servers is how many it has, 0 where nobody has said.
type Where struct {
	Owners  *plan.Owners
	Servers int
	// Version and Mark name the state, in which the newest changes led.
	Version, Mark uint64
	recent        *recent
}

// Since returns what has changed after a state, in order, with Home where keys came
// home; ok is false where that is not known any more.
func (w Where) Since(version, mark uint64) (changed []plan.Range, ok bool) {
	if version == w.Version && mark == w.Mark && mark != 0 {
		return nil, true
	}
	if w.recent == nil {
		return nil, false
	}
	events, ok := w.recent.since(version, mark)
	for _, e := range events {
		ranges, err := rangesOf(e.GetChange().GetDisplaced())
		if err != nil {
			return nil, false
		}
		changed = append(changed, ranges...)
	}
	return changed, ok
}

// View calls look with where the keys of a job's newest run are. look must keep nothing
// of that, nor call the service.
func (s *Service) View(name string, look func(w Where)) {
	j, err := s.find(name)
	if err != nil {
		look(Where{Owners: &plan.Owners{}})
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	look(Where{&j.owners, j.servers, j.version, j.mark, &j.recent})
}

// Lost says what the store waits for to know where keys of a job's newest run
// are; empty where it knows.
func (s *Service) Lost(name string) string {
	j, err := s.find(name)
	if err != nil {
		return ""
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lostText()
}

// Busy reports whether a plan of the job is being carried out, and whether
// plans are held back.
func (s *Service) Busy(name string) (moving, held bool) {
	j, err := s.find(name)
	if err != nil {
		return false, false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.moving != nil, j.held
}

// Trouble says why nothing is planned for a job; empty where all is well.
func (s *Service) Trouble(ctx context.Context, name string, servers int, trouble string) {
	j, err := s.openJob(ctx, name, servers)
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trouble = trouble
}

// Measured tells what each machine moves in a step now that a plan was carried
// out, by the names of the plan's hosts.
func (s *Service) Measured(ctx context.Context, name string, epoch uint64, actual map[string]float64) error {
	j, err := s.find(name)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.measured(ctx, epoch, actual)
}

// Describe implements api.PlansServer.
func (s *Service) Describe(_ context.Context, r *api.DescribeRequest) (*api.Description, error) {
	job := s.scheduler(r.GetJob())
	d := &api.Description{}
	for _, j := range s.newestRuns() {
		if job == "" || job == j.name {
			d.Jobs = append(d.Jobs, j.describe())
		}
	}
	if r.GetJob() != "" && len(d.GetJobs()) == 0 {
		return nil, status.Errorf(codes.NotFound, "job %q has no plan", r.GetJob())
	}
	return d, nil
}

// Epoch returns a plan and what came of it so far, nil where it is not known.
func (s *Service) Epoch(name string, number uint64) *api.Epoch {
	j, err := s.find(name)
	if err != nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.epoch(number); e != nil {
		return e.describe()
	}
	return nil
}

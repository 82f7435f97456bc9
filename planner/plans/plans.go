// Package plans is the authority on where a job's keys are. It decides which server owns each key,
// and it carries out the plans that move keys.
//
// Strategies submit plans ([Service.Propose]), proxies record and report moves (gRPC service Plans,
// planner/api/plans.proto), and operators apply, roll back or restore plans ([Service.Act]).
// Proxies receive the owner of every displaced key and the batches to move; operators receive an
// account of each plan.
//
// # Source of truth
//
// The [store.Store] decides who owns a key. A change is on disk before any watcher hears of it and
// before Record returns, so a planner that is killed at any moment restarts with every owner that
// it has acknowledged. A planner that does not answer costs nothing but new moves: proxies keep
// routing by the copy that they have.
//
// # State
//
// A [Service] has one job value for each run of a job (see [plan.Run]), keyed by runKey. A job has
// the owners of its displaced keys, the log of recent changes, and its epochs. An epoch is one
// plan:
//
//	PROPOSED ──apply──► MOVING ──all batches done──► DONE
//	    │                 │                           │
//	    └───────────────► SUPERSEDED by a newer plan  └──► ROLLED_BACK
//
// At most one epoch of a run is MOVING. Its moves are grouped into batches, each with one source
// and one destination server, and opened a few at a time, so that no proxy queues a whole plan.
//
// # Files
//
//   - record.go commits changes of owners, in groups.
//   - epoch.go has plans, their batches and their progress; transition.go writes their changes;
//     act.go has the commands of operators, command.go when they are done.
//   - watch.go streams owners and moves to proxies; told.go encodes each event once for all of them.
//   - runs.go creates and drops runs.
//   - teach.go rebuilds the owners of a run from its proxies when the store was lost.
//   - journal.go has the layout of the store; restore.go reads it at startup, settle.go after a write
//     that failed.
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

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// Bounds on the state of a service. Every one of them is reachable by a remote caller, so each is
// checked where the state is created.
const (
	// MaxJobs is how many jobs may have plans.
	MaxJobs = 1024
	// MaxRuns is how many runs they may have together. Runs that no proxy carries are dropped when
	// their job begins another one.
	MaxRuns = 1 << 14
	// MaxEpochs is how many plans of a job are remembered.
	MaxEpochs = 64
	// MaxRanges is how many ranges of keys one plan may move. A plan has at most as many batches,
	// which is below the 2^24 that a batch number has room for.
	MaxRanges = 4 << 20
	// MaxRecord is how many ranges one Record may have. The change that it becomes is one entry of
	// the store, which must fit in store.MaxValue.
	MaxRecord = 8192
	// MaxServers is how many servers a job may have.
	MaxServers = 4096
)

// Options say how plans are carried out.
type Options struct {
	// Act carries out a proposed plan at once, unless the job is held.
	Act bool
	// Scheduler, if not nil, maps a job's name to its scheduler's address, and returns any other
	// text unchanged.
	Scheduler func(name string) string
	// Title, if not nil, maps a scheduler's address to the job's name in metrics. current is true
	// for the newest job of that name.
	Title func(job string) (name string, current bool)
	// Wish, if not nil, returns what the owner of the job asks for: "true", "false", or "" for no
	// preference. It overrides Act. It is called with a run's mutex held and must not call the
	// service.
	Wish func(job string) string
	// Forgetful says that the store does not outlive the planner. Then no key is ever moved, since
	// a restarted planner would not know where it is.
	Forgetful bool
	// Strategy names what makes the plans, for people.
	Strategy string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Log receives events of stores and runs. The default is slog.Default().
	Log *slog.Logger
}

// A Service keeps the plans of all jobs. It implements api.PlansServer. Its methods may be called
// from any goroutine.
//
// Lock order: the mutexes of runs, several of them in the order of allRuns; then one run's queueMu,
// or the service's mutex. The service's mutex is a leaf: no run is locked and no store is written
// while it is held.
//
// Store writes are made with the run's mutex held, and the events that follow from a write are
// queued before it is released. So each watcher receives changes in the order in which they are on
// disk, and a new watcher, which locks all runs to register, misses none. The price is that a slow
// disk delays all callers of that run; Record groups its callers to make up for it.
//
// Invariants: a job's newest run, in jobs, is in runs too; watching has the watchers of watchers,
// and no empty set; audiences has no entry that is older than the last change of watchers.
type Service struct {
	api.UnimplementedPlansServer

	opts  Options
	store store.Store
	// logSlack is the constant of that name, except in tests.
	logSlack int

	// id is drawn at random when a store is created and identifies the store from then on. Proxies
	// keep it with the versions that they have seen, which is how they detect that a store was
	// replaced.
	id string
	// identified is set once id is on disk. It is written ahead of the first entry, so that no
	// entry can be found without it.
	identified atomic.Bool
	// The number of reports on moves that were ignored: their hosts do not watch the run.
	foreign atomic.Uint64

	mu   sync.Mutex // guards the rest
	runs map[runKey]*job
	// The number of times that a run was opened.
	opened uint64
	// The newest run of each job.
	jobs     map[string]*job
	watchers map[*watcher]bool
	watched  int // the memory of what they carry, in bytes
	// watchers by host, in lower case, for the authorization of Record and Teach.
	watching map[string]map[*watcher]bool
	// audiences caches the watchers of a run. It is cleared whenever a watcher is added or removed.
	// Without it every change would scan the watchers of all jobs.
	audiences map[runKey]*audience
}

// New returns a service with the plans that the store has, and reopens the batches of plans that
// were being carried out. It reads the whole store. It fails if an entry cannot be decoded or a
// run's log has a gap: guessing an owner would be worse than not starting, since proxies that hold
// on lose no update.
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

// find returns the newest run of a job, by its scheduler's address, or a gRPC NotFound.
func (s *Service) find(name string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[name]; j != nil {
		return j, nil
	}
	return nil, status.Errorf(codes.NotFound, "job %q has no plan", name)
}

// findRun returns one run of a job, or a gRPC NotFound. The run may be gone by the time the caller
// has locked it; callers that change it check job.gone.
func (s *Service) findRun(name, run string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.runs[runKey{name, plan.Run(run)}]; j != nil {
		return j, nil
	}
	return nil, status.Errorf(codes.NotFound, "job %q has no plan for run %q", name, run)
}

// allRuns returns all runs of all jobs, in the order in which they must be locked if several are.
func (s *Service) allRuns() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.runs), func(a, b *job) int { return a.key().compare(b.key()) })
}

// newestRuns returns the newest run of each job, by job.
func (s *Service) newestRuns() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var jobs []*job
	for _, name := range slices.Sorted(maps.Keys(s.jobs)) {
		jobs = append(jobs, s.jobs[name])
	}
	return jobs
}

// openJob returns the newest run of a job. If no proxy has named one, it returns the unnamed run,
// which is created if necessary, so that its plans can be shown.
func (s *Service) openJob(ctx context.Context, name string, servers int) (*job, error) {
	return s.openRun(ctx, runKey{name, s.Run(name)}, servers)
}

// A Proposal is a plan as a strategy submits it: the wanted owner of each range of keys. The
// service computes the moves from the owners at that moment.
type Proposal struct {
	Job string
	// Run is the run that it was made for; empty: the newest.
	Run     plan.Run
	Servers int
	// Reason says in words why it was made.
	Reason string
	// Targets are ranges with the rank of the server that shall own them, in any order. Ranges that
	// it owns already are left out of the plan. The service does not keep the slice.
	Targets []plan.Range
	// Hosts have the bytes that each machine moves in a step, now and as predicted. The service
	// keeps them with the plan.
	Hosts []*api.HostLoad
	// MigrationBytes is the predicted cost of the moves, in bytes over all links. HorizonSteps is
	// the number of steps over which the plan must pay for it.
	MigrationBytes, HorizonSteps float64
}

// Propose stores a plan and returns its epoch, or 0 if no key would move. A plan that was proposed
// before and not applied is replaced, so that a planner that only proposes does not fill the
// history. The plan is carried out at once if the options say so.
// Propose blocks for the store. If it fails, nothing has changed.
func (s *Service) Propose(ctx context.Context, p Proposal) (uint64, error) {
	if p.Run == "" {
		p.Run = s.Run(p.Job)
	}
	// A strategy works on reports that are seconds old. The job may have been started again since.
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
	if err := j.settle(ctx); err != nil {
		return 0, err
	}
	return j.propose(ctx, p)
}

// Where is a view of the owners of a job's newest run, valid only within the callback of
// [Service.View]. Owners has the displaced keys; it is empty if the run has no plan. Servers is the
// number of servers, 0 if unknown.
type Where struct {
	Owners  *plan.Owners
	Servers int
	// Version and Mark identify the state. Version alone does not: a store that was restored from
	// an old copy can reach the same number by other changes, which then have another mark.
	Version, Mark uint64
	recent        *recent
}

// Since returns the changes after a state, oldest first, with Home for keys that came home. It lets
// a caller that follows the owners apply a few changes instead of reading all of them. ok is false
// if that state is too old, or is of another history; the caller then reads Owners.
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

// View calls look with the owners of a job's newest run, and with none if the job is unknown. The
// run is locked meanwhile: look must not keep any of it, block, or call the service.
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

// Lost explains what a lost store waits for before it knows the owners of a job's newest run. It
// returns "" if the owners are known.
func (s *Service) Lost(name string) string {
	j, err := s.find(name)
	if err != nil {
		return ""
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lostText()
}

// Busy reports whether a plan of the job is being carried out, and whether new plans are held until
// an operator applies one.
func (s *Service) Busy(name string) (moving, held bool) {
	j, err := s.find(name)
	if err != nil {
		return false, false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.moving != nil, j.held
}

// Trouble sets the text that explains to operators why nothing is planned for a job; "" clears it.
// It is not stored.
func (s *Service) Trouble(ctx context.Context, name string, servers int, trouble string) {
	j, err := s.openJob(ctx, name, servers)
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trouble = trouble
}

// Measured stores, beside the prediction, the bytes that each host has moved in a step since a plan
// was carried out. actual is by host name; hosts that the plan does not have are ignored.
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

// Epoch returns a copy of a plan of the job's newest run, with the progress reported so far, or nil
// if it is unknown.
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

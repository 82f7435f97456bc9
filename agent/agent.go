// Package agent watches the PS-lite jobs of a host: it finds their processes,
// attaches the capture programs to their cgroups, rebuilds and counts their
// messages, and shows what came of it over HTTP, as metrics and to a planner.
//
// In come [Options]; [Agent.Run] works until its context ends and leaves
// nothing attached. What it knows is read through the agent's [page.State]
// methods. Subpackages do the work: discover finds processes, observe rebuilds
// messages, locality and counts keep the sums, web serves them, report sends
// them on. The command psidecar agent calls it.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/discover"

	"github.com/psidecar/psidecar/agent/observe"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/history"
)

// Options of an agent.
type Options struct {
	Version string
	Host    string // name under which it reports

	// Cgroups to watch, as paths of directories or below CgroupRoot. Without
	// Cgroups and PIDs, those of all PS-lite processes that are found.
	Cgroups []string
	PIDs    []int
	// Jobs are the names, or schedulers' addresses, of those to show; empty: all.
	Jobs       []string
	Proc       string // a /proc file system
	CgroupRoot string // mount of cgroup v2

	Capture  bpf.Options
	Sampling Sampling
	// WithProxy says that the process is the host's proxy too, whose work is
	// not to count as the agent's cost.
	WithProxy bool
	Locality  counts.LocalityOptions

	// Uses, where not nil, is called with every use of keys.
	Uses func(observe.Use)
	// Selects, where not nil, says of a pod by its UID (empty: in none) whether
	// its processes are watched.
	Selects func(pod string) bool
	// Pod, where not nil, names a pod by its UID.
	Pod func(uid string) (page.Pod, bool)
	// Allowed is what the owners of jobs may ask for, by annotations and variables.
	Allowed policy.Allowed
	// Said, where not nil, says what a pod says of its job, by its UID.
	Said func(uid string) (policy.Pod, bool)
	// Saved, where not nil, says how many bytes this host's proxies took from jobs for
	// links with a codec, and how many they sent in their stead; ok: there is a proxy
	// that says so.
	Saved func() (job, far uint64, ok bool)
	// Machine, where not nil, says what the host is.
	Machine func() Machine
	// Route, where not nil, tells where connections go that may have been
	// redirected to a proxy.
	Route observe.Route
	// Slow, where not nil, is called with each request whose answer took
	// Locality.SlowAfter or longer, and its job's scheduler. It must not block, nor
	// call the agent.
	Slow func(scheduler netip.AddrPort, s counts.Slow)
	// LastPush, where not nil, is called with workers that push no more: see
	// [observe.Options].
	LastPush func(scheduler netip.AddrPort, node int32)
	// Found, where not nil, is called with the processes of jobs after every scan.
	Found func(*discover.Snapshot)
	// Health is notified by each turn of the loops, and answers /healthz; nil:
	// always healthy.
	Health *health.Loops
	// Names is what keys are called; nil: they have no names.
	Names *page.NameFile
	// Carried returns the state of this host's proxy.
	Carried Carried
	// Adoption, where not nil, says what came of adopting connections.
	Adoption func() *page.Adoption
	// Collectors have metrics that are served with the agent's.
	Collectors []prometheus.Collector
}

// Sampling says how many requests' keys are looked at.
type Sampling struct {
	OneIn  uint32 // of the windows of timestamps; 1: all. The start where Budget is set
	Window uint32 // timestamps
	// Budget, where above 0, is the share of one core, in percent, that copying
	// out keys and counting them may take: each job is sampled as it allows, but
	// steps now and then are looked at whatever that takes.
	Budget float64
}

// Agent watches a host. Its page.State methods may be called while Run runs. met, found
// and foundAt are used by the loop that looks for processes alone.
type Agent struct {
	opts     Options
	started  time.Time
	capture  *bpf.Capture
	observer *observe.Observer
	procs    *processes
	called   *called
	cost     cost

	wall int64 // what to add to the monotonic clock to get nanoseconds since 1970

	reader     atomic.Int64 // the thread that reads
	timer      timer
	curves     curves
	sight      sight                 // used by findStalls alone
	controller sampleController      // used by adapt alone
	rates      map[uint64]sampleRate // of streams, as set; used by adapt alone

	leftOut atomic.Uint64 // processes that are not looked at, lately

	begun chan struct{} // a node has begun: look now
	met   map[int]int   // how many addresses each process listened on when it was met

	found   *discover.Snapshot // passed to Options.Found last
	foundAt time.Time

	mu       sync.Mutex // guards the rest; acquired before the capture's
	decided  sampleDecision
	findings map[string]stallFinding // by job
	blind    string                  // why not all is seen of what jobs do now; empty: it is
	logged   map[string]finding      // of findStalls alone
	attached []string                // cgroups
	unsynced map[string]lateness     // by job
	ready    error
	planner  func() *page.Planner
	windowed time.Time         // when uses were last reported key by key
	pace     time.Duration     // after how long they are reported again
	told     map[string]uint64 // bytes of each job then
}

// lateness counts the connections of a job that the kernel's tracker has not synchronised.
type lateness struct {
	connections int
	missed      uint64
}

// How often things are looked at.
const (
	discoverEvery = 500 * time.Millisecond
	tellEvery     = 2 * time.Second
	sweepEvery    = time.Second
	// standsFor is how long a loop may stand still before /healthz says so. A host
	// with very many processes takes seconds to look at.
	standsFor = 20 * time.Second
)

// errNotAttached is what Ready says before the first cgroup is watched.
var errNotAttached = errors.New("no cgroup is watched yet: no PS-lite process has been found")

// New loads the capture programs. Close, or the end of Run, frees them.
func New(opts Options) (*Agent, error) {
	a := &Agent{
		logged: map[string]finding{},
		opts:   opts, started: time.Now(), unsynced: map[string]lateness{}, ready: errNotAttached,
		pace:  windowEvery,
		begun: make(chan struct{}, 1), procs: newProcesses(opts.Proc, opts.Selects), met: map[int]int{},
		called: newCalled(opts.Allowed, opts.Said),
	}
	a.procs.leaves = a.called.leaves
	opts.Sampling.OneIn = max(opts.Sampling.OneIn, 1)
	a.opts.Sampling = opts.Sampling
	a.controller = sampleController{Budget: opts.Sampling.Budget, Start: opts.Sampling.OneIn}
	opts.Capture.Sampling = bpf.Sampling{Window: opts.Sampling.Window, OneIn: opts.Sampling.OneIn, AnswerKeys: true}
	capture, err := bpf.Open(opts.Capture)
	if err != nil {
		return nil, fmt.Errorf("loading the capture programs: %w", err)
	}
	a.capture = capture
	offset := wallOffset()
	a.wall = offset
	opts.Locality.Counts.Timed = a.timer.timed
	a.observer = observe.New(observe.Options{
		Resolver: a.procs,
		Locality: opts.Locality,
		Wall:     func(t uint64) int64 { return int64(t) + offset },
		OneIn:    func() uint32 { return opts.Sampling.OneIn },
		Uses:     opts.Uses,

		Route: opts.Route, LastPush: opts.LastPush, Slow: opts.Slow,

		IngressTimes: opts.Capture.Ingress == bpf.IngressMetas,
	})
	if opts.Pod != nil {
		a.ready = nil // a node of a cluster without jobs is no reason to hold up the others
	}
	for _, group := range opts.Cgroups {
		if err := a.attach(a.cgroupPath(group)); err != nil {
			return nil, errors.Join(err, capture.Close())
		}
	}
	for _, pid := range opts.PIDs {
		if err := a.attachPID(pid); err != nil {
			return nil, errors.Join(err, capture.Close())
		}
	}
	if len(a.attached) > 0 {
		a.onlyWatched()
	}
	// Learn the peers of connections before the first messages need them.
	if _, err := a.procs.refresh(anew); err != nil {
		return nil, errors.Join(err, capture.Close())
	}
	return a, nil
}

// wallOffset is what to add to CLOCK_MONOTONIC to get nanoseconds since 1970.
func wallOffset() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return time.Now().UnixNano() - ts.Nano()
}

// Close frees the programs of an agent that was not run.
func (a *Agent) Close() error { return a.capture.Close() }

// Run works until ctx ends, then detaches everything.
func (a *Agent) Run(ctx context.Context) error {
	g, running := errgroup.WithContext(ctx)
	if w := openExecs(); w != nil {
		g.Go(func() error { return a.followExecs(running, w) })
	}
	g.Go(func() error { return a.read(running) })
	g.Go(func() error { return a.lookForProcesses(running) })
	g.Go(func() error {
		return every(running, a.opts.Health.Add("sweeping streams", standsFor), sweepEvery, a.sweep)
	})
	g.Go(func() error { return every(running, a.opts.Health.Add("adapting", standsFor), adaptEvery, a.adapt) })
	g.Go(func() error {
		return every(running, a.opts.Health.Add("looking for stalls", standsFor), stallEvery, a.findStalls)
	})
	g.Go(func() error {
		return every(running, a.opts.Health.Add("keeping the last hour", standsFor), history.Every, a.noteHour)
	})
	err := g.Wait()
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		err = nil // in order, whether it was cancelled or its time was over
	}
	return errors.Join(err, a.capture.Close())
}

// readerNice is the nice value of the thread that reads. A job that takes all
// cores would otherwise keep it waiting while the buffer runs full; it needs
// little time, but soon.
const readerNice = -15

// read hands what the kernel copied to the observer.
func (a *Agent) read(ctx context.Context) error {
	runtime.LockOSThread() // for good: the thread ends with the goroutine, and its nice value too
	a.reader.Store(int64(unix.Gettid()))
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), readerNice); err != nil {
		slog.Debug("the reading thread keeps its priority", "error", err)
	}
	handle := func(r *bpf.Record) { a.timer.handle(r, a.observer.Handle) }
	beat := a.opts.Health.Add("reading what the kernel copied", standsFor)
	defer beat.End()
	for {
		beat.Beat()
		if err := a.capture.Read(ctx, handle); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("reading the capture: %w", err)
		}
	}
}

// every calls f at once and then at intervals, until ctx ends.
func every(ctx context.Context, beat *health.Beat, interval time.Duration, f func() error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	defer beat.End()
	for {
		beat.Beat()
		if err := f(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// discover looks for PS-lite processes and watches their cgroups. Where it
// cannot look, for want of file descriptors as a rule, it does so the next time.
func (a *Agent) discover() error {
	snapshot, err := a.procs.glance()
	if err != nil {
		slog.Warn("looking for processes", "error", err)
		return nil
	}
	if left := uint64(snapshot.LeftOut); a.leftOut.Swap(left) < left {
		slog.Warn("more processes have the environment of a PS-lite node than are looked at", "most", discover.MaxNodes, "left_out", left)
	}
	for i := range snapshot.Processes {
		p := &snapshot.Processes[i]
		path := filepath.Join(a.opts.CgroupRoot, p.Cgroup)
		if len(a.opts.Cgroups)+len(a.opts.PIDs) == 0 && p.Cgroup != "" && !a.watches(path) {
			if err := a.attach(path); err != nil {
				slog.Warn("cannot watch a process", "pid", p.PID, "role", p.Role, "error", err)
			}
		}
		if len(p.Listens) > a.met[p.PID] && a.watches(path) {
			a.met[p.PID] = len(p.Listens)
			a.observer.Meet(processOf(p)) // makes the reader wait: not every time
		}
	}
	a.called.update(time.Now().UnixNano(), snapshot.Processes, a.observer.Knows)
	// Also now and then where nothing has changed: what failed is tried again.
	if a.opts.Found != nil && (snapshot != a.found || time.Since(a.foundAt) >= tellEvery) {
		a.found, a.foundAt = snapshot, time.Now()
		a.opts.Found(snapshot)
	}
	there := make(map[int]bool, len(snapshot.Processes))
	for i := range snapshot.Processes {
		there[snapshot.Processes[i].PID] = true
	}
	maps.DeleteFunc(a.met, func(pid, _ int) bool { return !there[pid] })
	return nil
}

// sweep looks at the kernel's table of streams.
func (a *Agent) sweep() error {
	streams, err := a.capture.Streams()
	if err != nil {
		return fmt.Errorf("reading the streams: %w", err)
	}
	a.observer.Reconcile()
	unsynced := map[string]lateness{}
	for i := range streams {
		s := &streams[i]
		if s.Gone {
			a.observer.Drop(s.ID)
			continue
		}
		timing := a.opts.Capture.Ingress == bpf.IngressMetas && s.ID.Direction() == bpf.Ingress
		if timing || s.Closed || s.Synced && s.Missed == 0 {
			continue
		}
		job, ok := a.procs.job(s.Local, s.Peer)
		if !ok {
			continue
		}
		c := unsynced[job]
		if !s.Synced {
			c.connections++
		}
		c.missed += s.Missed
		unsynced[job] = c
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unsynced = unsynced
	return nil
}

// Called returns what the job of a process is called, empty where nobody whose word
// counts has named it, and what its owner asks for.
func (a *Agent) Called(p *discover.Process) (name string, wishes policy.Policy) {
	return a.called.titleOf(p)
}

// SettleNames has the agent call jobs, by their schedulers' addresses, as a planner
// does that knows the jobs of all hosts.
func (a *Agent) SettleNames(names map[string]string) { a.called.takeNames(names) }

// Handler serves the agent over HTTP.
func (a *Agent) Handler(pprof bool) http.Handler {
	return page.Handler(a, page.Options{Metrics: a.metrics(), Pprof: pprof, Health: a.opts.Health, History: a.History, Names: a.opts.Names})
}

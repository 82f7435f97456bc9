// Package agent watches the PS-lite jobs of a host: it finds their processes, attaches the
// capture programs to their cgroups, rebuilds and counts their messages, and shows the results
// over HTTP, as metrics and to a planner.
//
// [New] loads the programs, [Agent.Run] works until its context ends and leaves nothing
// attached. Results are read through the methods of [page.State], which [Agent] implements.
// Subpackages do most of the work: discover finds processes, observe rebuilds messages, counts
// keeps the sums, report sends them to the planner, listeners opens listeners for the proxy,
// and daemon puts all of it together for the command psidecar agent.
//
// # Loops
//
// Run starts one goroutine for each loop. read hands the kernel's records to the observer; it
// must keep up, so it runs on a thread of its own with a raised priority. lookForProcesses
// scans /proc, every 500 ms and when an exec is reported. sweep compares the observer's streams
// with the kernel's table, adapt sets sampling rates, findStalls diagnoses jobs, and noteHour
// records the curves. Each loop reports to health, so that /healthz notices one that is stuck.
//
// # Locks
//
// Agent.mu guards what loops pass to each other and to the page. It is taken before the
// capture's lock. It may be taken while the observer's lock is held, because the observer's
// questions about processes lead to watches, so nothing that takes the observer's lock is
// called under it. State that belongs to a single loop has no lock; the fields say whose it is.
//
// [Recorded] and [BesideLive] implement page.State for recordings.
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
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/internal/policy"
)

// Options of an agent.
type Options struct {
	Version string
	// Host is the name under which the agent reports. The planner tells hosts apart by it, so
	// it must be unique among them.
	Host string // name under which it reports

	// Cgroups to watch, as paths of directories or relative to CgroupRoot. Without Cgroups and
	// PIDs, the cgroup of every PS-lite process that is found is watched.
	Cgroups []string
	PIDs    []int
	// Jobs are the names or scheduler addresses of the jobs to show; empty: all. Others are
	// counted too.
	Jobs       []string
	Proc       string // a /proc file system
	CgroupRoot string // mount of cgroup v2

	Capture  bpf.Options
	Sampling Sampling
	// WithProxy says that the process is the host's proxy too, whose work must not count as the
	// agent's cost.
	WithProxy bool
	Locality  counts.LocalityOptions

	// Uses, if not nil, is called with every use of keys, from the reading thread.
	Uses func(observe.Use)
	// Selects, if not nil, reports whether the processes of a pod are watched, given its UID
	// (empty: outside pods).
	Selects func(pod string) bool
	// Pod, if not nil, returns the name of a pod by its UID. It also means that this is a node
	// of a cluster: the agent is then ready even without a job.
	Pod func(uid string) (page.Pod, bool)
	// Allowed is what owners of jobs may set by annotations and variables.
	Allowed policy.Allowed
	// Said, if not nil, returns what a pod's annotations say of its job.
	Said func(uid string) (policy.Pod, bool)
	// Saved, if not nil, returns how many bytes this host's proxies took from jobs for links
	// with a codec, and how many they sent instead, since the proxies connected. ok is false if
	// no proxy reports it.
	Saved func() (job, far uint64, ok bool)
	// Machine, if not nil, describes the host. It is called for each report.
	Machine func() Machine
	// Route, if not nil, returns the destinations of connections that may have been redirected
	// to a proxy.
	Route observe.Route
	// LastPush, if not nil, is called with workers that push no more; see [observe.Options].
	LastPush func(scheduler netip.AddrPort, node int32)
	// Found, if not nil, is called after every scan that found a change, and every two seconds,
	// from the loop that looks for processes. It must not change the snapshot.
	Found func(*discover.Snapshot)
	// Health is told of each turn of the loops and answers /healthz; nil: always healthy.
	Health *health.Loops
	// Names are the names of keys; nil: they have none.
	Names *page.NameFile
	// PartKeys, if not nil, returns which keys are parts of other keys of a job: see observe.Options.
	PartKeys func(scheduler netip.AddrPort, known int) []observe.PartRange
	// Carried returns the state of this host's proxy.
	Carried Carried
	// Adoption, if not nil, returns the state of adopting connections.
	Adoption func() *page.Adoption
	// Collectors are served beside the agent's own metrics.
	Collectors []prometheus.Collector
}

// Sampling says how densely the keys of requests are sampled.
type Sampling struct {
	OneIn  uint32 // one in so many windows of timestamps; 1: all. With a Budget, the initial rate
	Window uint32 // timestamps in a window
	// Budget, if above 0, is the share of one core, in percent, that copying out and counting
	// keys may take. Each job is then sampled as densely as the budget allows, but some steps
	// are always sampled.
	Budget float64
}

// An Agent watches a host. The methods of page.State may be called from any goroutine while Run
// runs.
type Agent struct {
	opts     Options
	started  time.Time
	capture  *bpf.Capture
	observer *observe.Observer
	procs    *processes
	called   *called
	cost     cost

	wall int64 // added to CLOCK_MONOTONIC to get nanoseconds since 1970; fixed, so that times never jump

	reader     atomic.Int64  // id of the thread that reads the capture; 0: not reading yet
	restOf     atomic.Uint32 // see sampleDecision
	allowed    atomic.Uint64 // bits of a float64: percent of a core that watching may take now; 0: any
	loops      atomic.Int64  // nanoseconds of CPU time of the loops and of reports
	timer      timer
	curves     curves
	sight      sight                       // belongs to findStalls
	controller sampleController            // belongs to adapt
	rates      map[bpf.StreamID]streamRate // set in the kernel, by stream; belongs to adapt
	traffic    messageCost                 // belongs to adapt
	windowPace pace                        // belongs to the reporting goroutine

	leftOut atomic.Uint64 // processes beyond the bound, at the last scan

	begun chan struct{} // capacity 1: a node has started, scan now
	met   map[int]int   // by PID, on how many addresses it listened when the observer was told; belongs to discover

	// What was last passed to Options.Found, and when; belongs to discover.
	found   *discover.Snapshot // passed to Options.Found last
	foundAt time.Time

	mu       sync.Mutex // guards the fields below; taken before the capture's
	decided  sampleDecision
	findings map[string]stallFinding     // by job
	blind    string                      // why messages may be missing now; empty: none are
	logged   map[string]finding          // by job; belongs to findStalls
	attached []string                    // watched cgroups; none is below another
	unsynced map[string]lateness         // by job
	busy     map[bpf.StreamID]busyness   // replaced, never changed
	resting  map[bpf.StreamID]streamRate // likewise; what adapt has set last
	ready    error                       // nil: ready
	planner  func() *page.Planner
	windowed time.Time         // when windows were last reported
	pace     time.Duration     // least time until they are reported again
	windows  time.Duration     // likewise, where they take much time and no worker turns to other keys
	told     map[string]uint64 // bytes of each job at that time
}

// lateness counts the connections of a job whose frames the kernel does not follow yet.
type lateness struct {
	connections int
	missed      uint64 // bytes
}

// Intervals of the loops.
const (
	discoverEvery = 500 * time.Millisecond
	tellEvery     = 2 * time.Second // Options.Found is called at least this often
	sweepEvery    = time.Second
	// standsFor is how long a loop may take for one turn before /healthz reports it. On a host
	// with very many processes a scan takes seconds.
	standsFor = 20 * time.Second
)

// errNotAttached is Ready's answer before the first cgroup is watched.
var errNotAttached = errors.New("no cgroup is watched yet: no PS-lite process has been found")

// New loads the capture programs, attaches them to the cgroups and processes that opts name,
// and takes a first look at the host. Close, or the end of Run, releases everything. Other
// cgroups are attached by Run.
func New(opts Options) (*Agent, error) {
	a := &Agent{
		logged: map[string]finding{},
		opts:   opts, started: time.Now(), unsynced: map[string]lateness{}, ready: errNotAttached,
		pace:       windowEvery,
		windowPace: pace{least: windowEvery, most: time.Minute, share: 0.1},
		begun:      make(chan struct{}, 1), procs: newProcesses(opts.Proc, opts.Selects), met: map[int]int{},
		called: newCalled(opts.Allowed, opts.Said),
	}
	// Owners may opt out before anything of theirs is attached.
	a.procs.leaves = a.called.leaves
	a.called.started = a.procs.started
	opts.Sampling.OneIn = max(opts.Sampling.OneIn, 1)
	a.opts.Sampling = opts.Sampling
	a.controller = sampleController{Budget: opts.Sampling.Budget, Start: opts.Sampling.OneIn}
	// AnswerKeys: a server's host sees the answers that it sends and not the requests for them,
	// and the bytes of a pull count at the answer.
	opts.Capture.Sampling = bpf.Sampling{Window: opts.Sampling.Window, OneIn: opts.Sampling.OneIn, AnswerKeys: true}
	capture, err := bpf.Open(opts.Capture)
	if err != nil {
		return nil, fmt.Errorf("loading the capture programs: %w", err)
	}
	a.capture = capture
	// One offset for the life of the agent. Intervals of counting are ordered by these times,
	// and a wall clock that is stepped back would put new messages into old intervals.
	offset := wallOffset()
	a.wall = offset
	opts.Locality.Counts.Timed = a.timer.timed
	a.observer = observe.New(observe.Options{
		Resolver: a.procs,
		Locality: opts.Locality,
		Wall:     func(t uint64) int64 { return int64(t) + offset },
		OneIn:    func() uint32 { return opts.Sampling.OneIn },
		Uses:     opts.Uses,

		Route: opts.Route, LastPush: opts.LastPush, PartKeys: opts.PartKeys,

		IngressTimes: opts.Capture.Ingress == bpf.IngressMetas,
	})
	// In a cluster, readiness gates a rollout.
	if opts.Pod != nil {
		// A node without jobs must not hold up the rollout of a DaemonSet, which readiness
		// gates.
		a.ready = nil // a cluster's node without jobs must not hold up a rollout
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
	// Before the first scan, which otherwise would find processes of other cgroups.
	if len(a.attached) > 0 {
		a.onlyWatched()
	}
	// The observer asks for the owners of connections with the first records.
	if _, err := a.procs.refresh(anew); err != nil {
		return nil, errors.Join(err, capture.Close())
	}
	return a, nil
}

// wallOffset returns what to add to CLOCK_MONOTONIC to get nanoseconds since 1970.
func wallOffset() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it exists on every Linux
	}
	return time.Now().UnixNano() - ts.Nano()
}

// Close releases an agent that was not run.
func (a *Agent) Close() error { return a.capture.Close() }

// Run watches until ctx ends, or a loop fails, and then detaches everything. It returns nil if
// only ctx ended. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	g, running := errgroup.WithContext(ctx)
	// Before the first scan: see openExecs.
	if w := openExecs(); w != nil {
		g.Go(func() error { return a.followExecs(running, w) })
	}
	g.Go(func() error { return a.read(running) })
	g.Go(func() error { return a.lookForProcesses(running) })
	g.Go(func() error { return a.rest(running) })
	for _, l := range []struct {
		name  string
		every time.Duration
		share float64
		most  time.Duration
		turn  func() error
	}{
		// These two keep the budget.
		{"sweeping streams", sweepEvery, 0.05, 2 * sweepEvery, a.sweep}, {"adapting", adaptEvery, 0.05, 2 * adaptEvery, a.adapt},
		{"looking for stalls", stallEvery, 0.1, longestTurn, a.findStalls}, {"keeping the last hour", history.Every, 0.05, longestTurn, a.noteHour},
	} {
		g.Go(func() error {
			return a.every(running, a.opts.Health.Add(l.name, standsFor), pace{least: l.every, most: l.most, share: l.share}, l.turn)
		})
	}
	// The first loop that fails ends the others through running. The capture is closed only
	// when none of them can use it any more; closing detaches the programs.
	err := g.Wait()
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		err = nil // in order, whether it was cancelled or its time was over
	}
	return errors.Join(err, a.capture.Close())
}

// readerNice is the nice value of the reading thread. It needs little time but needs it soon:
// behind a job that takes all cores, the ring buffer would overflow while it waits.
const readerNice = -15

// read hands the kernel's records to the observer until ctx ends.
func (a *Agent) read(ctx context.Context) error {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and with it the priority
	a.reader.Store(int64(unix.Gettid()))
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), readerNice); err != nil {
		slog.Debug("cannot change the priority of the reader thread", "error", err)
	}
	handle := func(r *bpf.Record) { a.timer.handle(r, a.observer.Handle) }
	beat := a.opts.Health.Add("reading what the kernel copied", standsFor)
	defer beat.End()
	for {
		beat.Beat()
		// Read returns at intervals even if there is nothing to read.
		if err := a.capture.Read(ctx, handle); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("reading the capture: %w", err)
		}
	}
}

// every calls f at once and then at the pace's intervals, until ctx ends or f fails.
func (a *Agent) every(ctx context.Context, beat *health.Beat, p pace, f func() error) error {
	defer beat.End()
	for {
		beat.Beat()
		var err error
		pause := a.paced(&p, func() { err = f() })
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// discover scans for PS-lite processes and attaches to their cgroups. A scan that fails,
// usually for want of file descriptors, is repeated at the next turn; no error ends the agent.
func (a *Agent) discover() error {
	snapshot, err := a.procs.glance()
	if err != nil {
		slog.Warn("scanning processes", "error", err)
		return nil
	}
	// Logged when the number grows, not at every scan.
	if left := uint64(snapshot.LeftOut); a.leftOut.Swap(left) < left {
		slog.Warn("too many processes with the environment of a PS-lite node; some are ignored", "most", discover.MaxNodes, "left_out", left)
	}
	for i := range snapshot.Processes {
		p := &snapshot.Processes[i]
		path := filepath.Join(a.opts.CgroupRoot, p.Cgroup)
		if len(a.opts.Cgroups)+len(a.opts.PIDs) == 0 && p.Cgroup != "" && !a.watches(path) {
			if err := a.attach(path); err != nil {
				slog.Warn("cannot watch a process", "pid", p.PID, "role", p.Role, "error", err)
			}
		}
		// The observer learns a node's addresses from its process, before any message says
		// them. A node listens on its port only after it has started, so it is met again when
		// there are more addresses.
		if len(p.Listens) > a.met[p.PID] && a.watches(path) {
			a.met[p.PID] = len(p.Listens)
			a.observer.Meet(processOf(p)) // only on news: it takes the lock that the reader needs
		}
	}
	a.called.update(time.Now().UnixNano(), snapshot.Processes, a.observer.Knows)
	// Also repeated without a change: the receiver retries what failed.
	if a.opts.Found != nil && (snapshot != a.found || time.Since(a.foundAt) >= tellEvery) {
		a.found, a.foundAt = snapshot, time.Now()
		a.opts.Found(snapshot)
	}
	// PIDs are reused: what is remembered of one ends with its process.
	there := make(map[int]bool, len(snapshot.Processes))
	for i := range snapshot.Processes {
		there[snapshot.Processes[i].PID] = true
	}
	maps.DeleteFunc(a.met, func(pid, _ int) bool { return !there[pid] })
	return nil
}

// sweep compares the kernel's table of streams with the observer. Streams that the kernel has
// forgotten are dropped. Those whose frames it does not follow yet are counted by job, found by
// the processes at their ends, since no message of theirs says which job it is.
func (a *Agent) sweep() error {
	streams, err := a.capture.Streams()
	if err != nil {
		return fmt.Errorf("reading the streams: %w", err)
	}
	// It may scan /proc, so it is called here and not by the reading thread.
	a.observer.Reconcile()
	unsynced := map[string]lateness{}
	busy, now := make(map[bpf.StreamID]busyness, len(streams)), time.Now()
	for i := range streams {
		s := &streams[i]
		// Only this loop writes it.
		if !s.Gone && !s.Closed {
			busy[s.ID] = a.busy[s.ID].at(now, s.Messages, max(a.restOf.Load(), 1))
		}
		// The kernel reuses the entry; messages of its next owner must not be taken for this
		// stream's.
		if s.Gone {
			a.observer.Drop(s.ID)
			continue
		}
		// Streams that are only timed are no part of the traffic, so their state is not shown.
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
	a.unsynced, a.busy = unsynced, busy
	return nil
}

// Called returns the name of a process's job, empty if it has none or the process has no say in
// it, and what the process's owner asks for.
func (a *Agent) Called(p *discover.Process) (name string, wishes policy.Policy) {
	return a.called.titleOf(p)
}

// SettleNames sets the names of jobs, by scheduler address, that the planner has decided; it
// knows the jobs of all hosts. The agent keeps the map.
func (a *Agent) SettleNames(names map[string]string) { a.called.takeNames(names) }

// Handler serves the agent's page, API and metrics over HTTP, with pprof if asked for.
func (a *Agent) Handler(pprof bool) http.Handler {
	return page.Handler(a, page.Options{Metrics: a.metrics(), Pprof: pprof, Health: a.opts.Health, History: a.History, Names: a.opts.Names})
}

// Package jobs knows the jobs whose connections a proxy carries, and routes their workers' requests
// to the owners of the keys.
//
// It is a stage of the relay's pipeline ([relay.Stage]): [Jobs.Outbound] makes the stage of a
// connection that a process of this host has made, [Jobs.Inbound] that of one to a process of this
// host. The relay reads, parses and writes. A stage is shown each message; those that the router
// takes go no further, and those that it makes are sent between two of the job's.
//
//	process ──► requests (Outbound) ──► codec ──► link
//	              │ Inspect, Take   ▲ Due
//	              ▼                 │
//	             job ── route.Router, migrate.Site, ledgers
//	              ▲                 │
//	              │ Inspect, Take   ▼ Due
//	process ◄── answers (Inbound) ◄── codec ◄── link
//
// # Parts
//
// A [Jobs] has a job for each run that has nodes on this host. A job is learned from the node table
// as that passes on its way to a node (takeNodeTable), and the run from a name that the proxy on
// the scheduler's host puts before the table (runs.go). From then on requests and answers are shown
// to the job's [route.Router] (connections.go, requests.go, answers.go).
//
// Keys move by plans of the planner (plans.go, movers.go, progress.go) or to divide large values
// (parting.go, parts.go). The [migrate.Site] of each host exchanges letters with those of other
// hosts over links between proxies (sites.go, letter.go, post.go).
//
// What must survive this process is in a folder for each job; see folder.
//
// Peers are not trusted: a node table, a connection in a node's name and a letter are accepted only
// from where they can come from (accept.go, scope.go, visitor.go), and their memory is bounded
// (bounds.go, post.go). Connections that bypass the proxy are dangerous while keys are displaced;
// past.go has the rules. Requests of workers that have ended are abandoned (abandon.go).
//
// # Recovery
//
// A proxy that starts loads the jobs of its folder (saved.go) before it accepts a connection. A job
// whose keys are all at home goes on at once. One whose keys may be displaced is closed: its
// requests wait until every other host with workers has sent its holds and the planner's store the
// owners of keys ([migrate.Site.Join]). Requests in flight that were split are open in the ledgers,
// so that their answers find their request; those that were waiting are there as whole messages,
// unless the job uses PS_RESEND and its workers repeat them. No key moves before all connections
// are back and have settled (past.go).
//
// Where the planner's store was lost, hosts teach it what they know (teach.go), and until it has
// heard all of them keys stay where they are.
//
// # Concurrency
//
// Each connection has a goroutine of the relay for each direction, which calls into its job under
// job.mu. [Jobs.Run] runs the timers, the Watch of the planner and the senders of letters. The lock
// order is at [Jobs]. Package proxy creates a Jobs and calls it.
package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// Options configure a [Jobs].
type Options struct {
	// Dir is the state folder: it has what a proxy must know after a kill, such as node tables and
	// ledgers.
	Dir string
	// Limit bounds the bytes of all ledgers in Dir; 0 means 256 MiB.
	Limit int64
	// Placement has the owners of keys from a job's first request on; nil: all keys are at home.
	Placement *plan.Placement
	// Planner is the address of the planner whose plans are carried out; empty: keys do not move.
	Planner string
	// Credentials are for the planner; nil: no TLS.
	Credentials credentials.TransportCredentials
	// DialPlanner are options for connecting to it, besides the credentials.
	DialPlanner []grpc.DialOption
	Host        string // name of this host, for the planner
	// Handler is what the servers do with pushes. With Unknown, keys can be placed but not moved,
	// unless Probe allows a test on a scratch key.
	Handler migrate.Handler
	Probe   bool
	// Parts is the number of parts into which large values are divided, AutoParts, or 0 for none.
	Parts int
	// Owner returns the cgroup of the process that listens at an address of this host; see
	// [proxy.Reach]. nil: there is no agent to ask.
	Owner func(ctx context.Context, netns uint64, at netip.AddrPort) (cgroup uint64, found bool, err error)
	// Dial connects to the proxy of the host with that address, for letters.
	Dial func(ctx context.Context, host netip.Addr) (net.Conn, error)
	// Guard keeps connections of jobs' processes from bypassing the proxy; may be nil.
	Guard Guard
	// Waits gives access to what codecs hold back of workers' pushes; may be nil.
	Waits Waits
	// Health gets a beat for each turn of the loops; may be nil.
	Health *health.Loops
	Log    *slog.Logger
}

// Jobs is all jobs of a proxy. Its methods are safe for concurrent use.
//
// Locks of this package are acquired in this order; any of them may be left out:
//
//	Jobs.mu           the set of jobs, and the scopes and nodes of each
//	job.mu            everything that a job's router, site and ledgers do
//	answers.mu, requests.mu, plans.mu, folder.mu,
//	Jobs.schedulersMu, Jobs.refusedMu     one of them, and of those below only losses.mu inside it
//	Jobs.linksMu, Jobs.runMu, losses.mu   in this order, and nothing inside them
//
// None is held during network I/O. Files of a job are written under job.mu, those
// of schedulers under schedulersMu.
type Jobs struct {
	opts   Options
	log    *slog.Logger
	folder *folder
	plans  *plans // nil without a planner

	mu      sync.RWMutex              // guards jobs, waiting and dialled; see job.scopes and job.nodes too
	jobs    map[string]*job           // by job.key
	waiting map[waiter]netip.AddrPort // connections whose job is not known yet, and their destinations
	dialled map[Scope]*dialled        // destinations of each scope, at most maxScopes

	schedulersMu sync.Mutex                  // guards schedulers, their files and schedulersTaken
	schedulers   map[schedulerKey]*scheduler // of this host
	// schedulersTaken means that schedulers includes those which the proxy before this one has
	// kept.
	schedulersTaken bool

	refusedMu sync.Mutex // guards refused
	refused   map[claim]uint64
	refusals  *rate.Limiter // of their log messages

	post *postRoom // for letters that are read and handled

	strayAnswers atomic.Uint64 // answers dropped because their job is not known
	messages     losses        // messages of routers that were dropped
	letters      losses        // letters that were dropped

	linksMu sync.Mutex // guards links
	links   map[netip.Addr]*siteLink
	// linkIdle is the constant, but in tests.
	linkIdle time.Duration

	runMu sync.Mutex      // guards run and ctx
	run   *errgroup.Group // nil unless Run runs
	ctx   context.Context
}

// New returns a Jobs with the jobs that the state folder has. Damaged files make their own job
// unusable, not this one; an error means that the folder itself cannot be used. Run must be called
// for anything to move.
func New(o Options) (*Jobs, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	f, err := openFolder(o.Dir, o.Limit, o.Log)
	if err != nil {
		return nil, err
	}
	j := &Jobs{opts: o, log: o.Log, folder: f, jobs: map[string]*job{}, waiting: map[waiter]netip.AddrPort{}, dialled: map[Scope]*dialled{},
		refused: map[claim]uint64{}, refusals: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce), schedulers: map[schedulerKey]*scheduler{}, links: map[netip.Addr]*siteLink{}, linkIdle: linkIdle,
		post: newPostRoom(largeMemory, letterMemory)}
	if o.Planner != "" {
		j.plans = newPlans(j)
	}
	return j, j.remember()
}

// tick is the period at which sites and routers repeat what may have been lost.
const tick = 150 * time.Millisecond

// Run talks to other sites and to the planner until ctx ends, and then writes what is unfinished
// for the next proxy. It must run only once. The job's connections have to be closed by then: what
// still arrives is not in the files.
func (j *Jobs) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	j.runMu.Lock()
	j.run, j.ctx = g, ctx
	j.runMu.Unlock()
	if j.plans != nil {
		g.Go(func() error { return j.plans.watchPlans(ctx) })
		g.Go(func() error { j.plans.reporting(ctx); return nil })
	}
	g.Go(func() error {
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		beat := j.opts.Health.Add("the jobs' timers", health.Within)
		defer beat.End()
		for {
			// At once where jobs were resumed: their requests wait until other hosts have answered.
			for _, job := range j.allJobs() {
				job.tick()
			}
			j.folder.ranUntil(time.Now())
			j.forgetEnded(time.Now())
			beat.Beat()
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
		}
	})
	// No goroutine of Run is left that could ask a site or a router for anything.
	err := g.Wait()
	for _, job := range j.allJobs() {
		if err := job.leaveUnfinished(); err != nil {
			j.log.Error("in-flight requests are lost", "job", job.name, "error", err)
		}
		job.leaveAnswered()
		job.close()
	}
	return err
}

// start runs f in a goroutine of Run, with Run's context. It returns false, and does nothing,
// unless Run is running.
func (j *Jobs) start(f func(ctx context.Context)) bool {
	j.runMu.Lock()
	defer j.runMu.Unlock()
	if j.run == nil || j.ctx.Err() != nil {
		return false
	}
	ctx := j.ctx
	j.run.Go(func() error { f(ctx); return nil })
	return true
}

// allJobs returns the jobs of this moment. The caller does not hold j.mu, so any of them may be
// dropped meanwhile: gone is set then.
func (j *Jobs) allJobs() []*job {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return slices.Collect(maps.Values(j.jobs))
}

// named returns a job by its name, or nil. Where several tenants have a job of that name, the one
// with the run is preferred.
func (j *Jobs) named(name string, run plan.Run) (found *job) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for _, x := range j.jobs {
		if x.name == name && (found == nil || x.run == run) {
			found = x
		}
	}
	return found
}

// register adds a job under a key and with a folder that no other job has; the caller holds j.mu.
func (j *Jobs) register(x *job) {
	// Tenants may have jobs with the same scheduler address, each in its own network namespace. The
	// key is internal, so a number suffices to tell them apart.
	x.key = x.name
	for n := 2; j.jobs[x.key] != nil; n++ {
		x.key = fmt.Sprintf("%s #%d", x.name, n)
	}
	for _, other := range j.jobs {
		if other.dir == x.dir {
			x.dir += fmt.Sprintf("-%x", time.Now().UnixNano())
		}
	}
	j.jobs[x.key] = x
	j.folder.empty.Store(false)
}

// Closed is told, before connections of a cgroup come, that they would fail without a proxy. One
// before this had asked for that, for a job whose keys were displaced: where nothing at all is left
// of its jobs, their state is lost.
func (j *Jobs) Closed(cgroup uint64) {
	j.folder.missJobs(fmt.Errorf("a proxy before this one has had connections of cgroup %d fail rather than bypass it, and %s has no job", cgroup, j.opts.Dir))
}

// known returns the job that a node table belongs to, which a process of scope s receives: the
// scope's own job of that name or, where another scope of its network namespace got the same table
// of the same run, that scope's. The latter is how the containers of one pod share a job. The
// caller holds j.mu.
func (j *Jobs) known(name string, run plan.Run, t *pslite.Table, s Scope) *job {
	for _, x := range j.jobs {
		if x.name == name && x.hasScope(s) {
			return x
		}
	}
	for _, x := range j.jobs {
		if x.name == name && x.near(s) && x.run == run && sameNodes(&x.nodes, t) {
			return x
		}
	}
	return nil
}

// takeNodeTable learns from a node table of a run, on its way to the node that listens at local, a
// process of scope s. It begins a job, continues one, or replaces the job of an earlier run. The
// table is seen before the node gets it, so the job is known when the node makes its first
// connection.
func (j *Jobs) takeNodeTable(m *pslite.Meta, local netip.AddrPort, run plan.Run, s Scope) {
	var t pslite.Table
	t.Learn(m)
	name := jobName(&t)
	servers, _ := t.Count()
	id, ok := t.At(local)
	back := recovers(m)
	// A recovery sends the node that came back a whole table, and the others one of the nodes that
	// came back.
	if back && name == "" {
		j.cameBack(&t, local, s) // nodes that stayed learn of nodes that came back
		return
	}
	if name == "" || servers == 0 || !ok {
		return
	}
	j.mu.Lock()
	// A recovery keeps the run, and only addresses change. Any other table with another run or
	// other nodes means that the job was started again: what is known of the old run (displaced
	// keys, holds, requests in flight) does not concern the new one and would misroute its
	// requests.
	job := j.known(name, run, &t, s)
	if job != nil && back && (run == "" || run == job.run) {
		job.abandonReplaced(&t)
		job.renew(&t)
	} else if job != nil && (job.run != run || !sameNodes(&job.nodes, &t)) {
		j.drop(job)
		job = nil
	}
	if job == nil {
		err := j.makeRoom(s, &t)
		if err != nil {
			j.refuse(claimJob, "too many jobs", "job", name, "scope", s, "error", err)
		} else {
			job, err = j.newJob(name, run, t, servers)
		}
		if err != nil {
			j.mu.Unlock()
			j.log.Error("cannot route requests of a job", "job", name, "error", err)
			return
		}
		// A recovery's table of an unknown job: the job has been running, and others may have moved
		// its keys.
		job.late = back && j.plans != nil
		j.register(job)
	}
	job.sure()
	job.joinScopes([]Scope{s})
	j.mu.Unlock()
	// Outside j.mu: a connection that joins may have its peer verified over the network.
	job.addLocal(id)
	if back && recovered(&t, id) {
		job.abandonWorker(id, false)
	}
	j.joinWaiting(job)
	if j.plans != nil {
		j.plans.again() // it may know moves of the job
	}
}

// cameBack handles a recovery's table as sent to nodes that stayed: it has only the nodes that came
// back, and no scheduler. It belongs to the job of the node at local.
func (j *Jobs) cameBack(t *pslite.Table, local netip.AddrPort, s Scope) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if x, _ := j.at(local, s); x != nil {
		x.sure()
		x.abandonReplaced(t)
		x.renew(t)
	}
}

// renew takes over the addresses in a recovery's table, and saves them; the caller holds jobs.mu.
func (x *job) renew(t *pslite.Table) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var m pslite.Meta
	m.Control.Cmd, m.Control.Nodes = pslite.AddNode, t.Nodes()
	if !x.nodes.Learn(&m) || x.site == nil || x.gone {
		return
	}
	x.site.SetOthers(x.otherNames())
	if err := x.save(); err != nil {
		x.jobs.log.Error("cannot save the address of a recovered node: it would be unknown after a restart", "job", x.name, "error", err)
	}
}

// jobName returns a job's name, the scheduler's host:port, or "" for a table without a scheduler.
func jobName(t *pslite.Table) string {
	for _, n := range t.Nodes() {
		if n.ID == pslite.SchedulerID {
			return net.JoinHostPort(n.Hostname, fmt.Sprint(n.Port))
		}
	}
	return ""
}

// sameNodes reports whether two tables have the same nodes at the same addresses.
func sameNodes(a, b *pslite.Table) bool {
	return slices.EqualFunc(a.Nodes(), b.Nodes(), func(x, y pslite.Node) bool {
		return x.ID == y.ID && x.Hostname == y.Hostname && x.Port == y.Port
	})
}

// restarted is called when a process registers with the scheduler of a job that had all its nodes.
// Either one of the job's nodes recovers, or another run begins. A run without a name is dropped;
// of one that has a name it cannot be known yet, and the next table shows it.
func (j *Jobs) restarted(old *job) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old.run != "" {
		if j.jobs[old.key] == old && old.succeeded() {
			j.drop(old)
		}
		return
	}
	if j.jobs[old.key] == old && time.Since(old.learned) > time.Second {
		j.drop(old)
	}
}

// drop forgets a job and removes its files; the caller holds j.mu. Connections that are still open
// wait for the job that takes its place.
func (j *Jobs) drop(old *job) {
	if j.jobs[old.key] == old {
		delete(j.jobs, old.key)
	}
	old.close()
	old.loseAll()
	for w, addr := range old.lines() {
		j.waiting[w] = addr
	}
	if err := os.RemoveAll(old.dir); err != nil {
		j.log.Warn("removing the state of an ended job", "job", old.name, "error", err)
	}
}

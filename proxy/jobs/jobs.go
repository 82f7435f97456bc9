// Package jobs knows the jobs whose connections a proxy carries, and routes
// their workers' requests to whoever owns the keys.
//
// It stands on both sides of the relay: [Jobs.Outbound] wraps the connections
// that processes of this host make, [Jobs.Inbound] those to processes of this
// host. A job's node table is learned as it passes, requests and answers are
// shown to the job's [route.Router], and what the router or the [migrate.Site]
// wants sent is put between the job's own messages. Sites talk over links
// between proxies ([Jobs.ServeSite]), moves and where keys are come from the
// planner. Package proxy calls it.
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
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// Options configure a [Jobs].
type Options struct {
	// Dir is where is kept what a proxy must know after it was killed: node
	// tables, and ledgers.
	Dir string
	// Limit is how many bytes ledgers may have there; 0: 256 MiB.
	Limit int64
	// Placement is where keys are from a job's first request on; nil: at home.
	Placement *plan.Placement
	// Planner is the address of the planner whose plans are carried out; empty:
	// none.
	Planner string
	// Credentials are how the planner is reached; nil: without TLS.
	Credentials credentials.TransportCredentials
	// DialPlanner is how it is connected to, besides the credentials.
	DialPlanner []grpc.DialOption
	Host        string // name of this host, for the planner
	// Handler is what the servers do with pushes; Unknown: keys are placed, and
	// not moved, unless Probe allows to find it out with a scratch key.
	Handler migrate.Handler
	Probe   bool
	// Parts is into how many parts large values go that are on one server, AutoParts, or
	// 0: they stay whole.
	Parts int
	// Owner returns the process that listens at an address of this host: see
	// [proxy.Reach]. nil: there is no agent.
	Owner func(ctx context.Context, netns uint64, at netip.AddrPort) (cgroup uint64, found bool, err error)
	// Dial connects to the proxy of the host with that address.
	Dial func(ctx context.Context, host netip.Addr) (net.Conn, error)
	// Guard keeps connections of jobs' processes from going past the proxy. May
	// be nil.
	Guard Guard
	// Waits is what waits of workers' pushes to be sent; may be nil.
	Waits Waits
	// Health is notified by each turn of the loops; may be nil.
	Health *health.Loops
	Log    *slog.Logger
}

// Jobs is all jobs of a proxy. Its methods may be called from any goroutine.
//
// Locks of this package are acquired in this order, of which any may be left out:
//
//	answers.writing   while a message of the job's is followed and passed on
//	Jobs.mu           which jobs there are
//	job.mu            all that a job's router, site and ledgers do
//	answers.mu, requests.mu, plans.mu, folder.mu,
//	Jobs.schedulersMu, Jobs.refusedMu     one of them, and nothing within it
//	Jobs.linksMu, Jobs.runMu              in this order, and nothing within them
//
// Nobody waits for the network under any of them but answers.writing; files of a
// job are written under job.mu, those of schedulers under schedulersMu.
type Jobs struct {
	opts   Options
	log    *slog.Logger
	folder *folder
	plans  *plans // nil without a planner

	mu      sync.RWMutex              // guards jobs, waiting and dialled; see job.scopes too
	jobs    map[string]*job           // by job.key
	waiting map[waiter]netip.AddrPort // where they go to
	dialled map[Scope]*dialled

	schedulersMu sync.Mutex                  // guards schedulers, their files and schedulersTaken
	schedulers   map[schedulerKey]*scheduler // of this host
	// schedulersTaken: what the proxy before has kept of others is among them.
	schedulersTaken bool

	refusedMu sync.Mutex // guards refused
	refused   map[claim]uint64
	refusals  *rate.Limiter // of their logs

	post *semaphore.Weighted // of letters that are being read and heard

	strayAnswers atomic.Uint64 // dropped, since their job is not known

	linksMu sync.Mutex // guards links
	links   map[netip.Addr]*siteLink

	runMu sync.Mutex      // guards run and ctx
	run   *errgroup.Group // nil unless Run runs
	ctx   context.Context
}

// New returns the jobs that the folder remembers.
func New(o Options) (*Jobs, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	f, err := openFolder(o.Dir, o.Limit, o.Log)
	if err != nil {
		return nil, err
	}
	j := &Jobs{opts: o, log: o.Log, folder: f, jobs: map[string]*job{}, waiting: map[waiter]netip.AddrPort{}, dialled: map[Scope]*dialled{},
		refused: map[claim]uint64{}, refusals: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce), schedulers: map[schedulerKey]*scheduler{}, links: map[netip.Addr]*siteLink{},
		post: semaphore.NewWeighted(postMemory)}
	if o.Planner != "" {
		j.plans = newPlans(j)
	}
	return j, j.remember()
}

// tick is how often what may have been lost is said again.
const tick = 150 * time.Millisecond

// Run talks to other sites and the planner until ctx ends.
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
			beat.Beat()
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
				for _, job := range j.allJobs() {
					job.tick()
				}
				j.forgetEnded(time.Now())
			}
		}
	})
	err := g.Wait()
	for _, job := range j.allJobs() {
		if err := job.leaveUnfinished(); err != nil {
			j.log.Error("requests under way are lost", "job", job.name, "error", err)
		}
		job.close()
	}
	return err
}

// start runs something until Run's context ends; false where it has ended.
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

func (j *Jobs) allJobs() []*job {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return slices.Collect(maps.Values(j.jobs))
}

// named returns a job by its name. Where tenants have jobs of one name, it is
// the one with the run.
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

// register makes a job one of those that are known; the caller holds j.mu.
func (j *Jobs) register(x *job) {
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
}

// known returns the job that a node table is of which a process of a scope gets:
// the scope's own of that name or, where another scope of its network namespace has
// got the same table of the same run, that one's. The caller holds j.mu.
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

// takeNodeTable takes in a node table of a run on its way to the node that listens at an
// address of this host, a process of that scope.
func (j *Jobs) takeNodeTable(m *pslite.Meta, local netip.AddrPort, run plan.Run, s Scope) {
	var t pslite.Table
	t.Learn(m)
	name := jobName(&t)
	servers, _ := t.Count()
	id, ok := t.At(local)
	back := recovers(m)
	if back && name == "" {
		j.cameBack(&t, local, s) // nodes that stayed learn of nodes that came back
		return
	}
	if name == "" || servers == 0 || !ok {
		return
	}
	j.mu.Lock()
	job := j.known(name, run, &t, s)
	if job != nil && back && (run == "" || run == job.run) {
		job.renew(&t)
	} else if job != nil && (job.run != run || !sameNodes(&job.nodes, &t)) {
		j.drop(job)
		job = nil
	}
	if job == nil {
		err := j.makeRoom(s, &t)
		if err != nil {
			j.refuse(claimJob, "a job is one too many", "job", name, "scope", s, "error", err)
		} else {
			job, err = j.newJob(name, run, t, servers)
		}
		if err != nil {
			j.mu.Unlock()
			j.log.Error("requests of a job are not routed", "job", name, "error", err)
			return
		}
		job.late = back && j.plans != nil
		j.register(job)
	}
	job.sure()
	job.joinScopes([]Scope{s})
	j.mu.Unlock()
	job.addLocal(id)
	j.joinWaiting(job)
	if j.plans != nil {
		j.plans.again() // it may know moves of the job
	}
}

// cameBack records the address of a node that came back, from the table that nodes
// which stayed receive: it belongs to the run of the node at that address of this
// host.
func (j *Jobs) cameBack(t *pslite.Table, local netip.AddrPort, s Scope) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if x, _ := j.at(local, s); x != nil {
		x.sure()
		x.renew(t)
	}
}

// renew takes over where nodes are now; the caller holds jobs.mu.
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
		x.jobs.log.Error("where a node is that came back would not be known after a restart", "job", x.name, "error", err)
	}
}

// jobName is the scheduler's host:port.
func jobName(t *pslite.Table) string {
	for _, n := range t.Nodes() {
		if n.ID == pslite.SchedulerID {
			return net.JoinHostPort(n.Hostname, fmt.Sprint(n.Port))
		}
	}
	return ""
}

func sameNodes(a, b *pslite.Table) bool {
	return slices.EqualFunc(a.Nodes(), b.Nodes(), func(x, y pslite.Node) bool {
		return x.ID == y.ID && x.Hostname == y.Hostname && x.Port == y.Port
	})
}

// restarted is called when a process registers with the scheduler of a job that
// had all its nodes. Of a run that has a name nothing follows: either its node
// recovers, or a table with another name comes.
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

// drop forgets a job; the caller holds j.mu. Connections that are still open find
// the run that has taken its place.
func (j *Jobs) drop(old *job) {
	if j.jobs[old.key] == old {
		delete(j.jobs, old.key)
	}
	old.close()
	for w, addr := range old.lines() {
		j.waiting[w] = addr
	}
	if err := os.RemoveAll(old.dir); err != nil {
		j.log.Warn("removing what was kept of a job that has ended", "job", old.name, "error", err)
	}
}

package jobs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/ledger"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// job is one job, as far as this host has to do with it.
//
// Invariants, while mu is not held:
//   - site is nil until a node of this host has the node table; without a site no
//     request is routed.
//   - what router and site want done has been done (carry), so that their queues of
//     letters and results are empty.
//   - up and down have those connections in open that are of a worker and a server;
//     messages for a pair in neither are in pendingUp and pendingDown.
//   - displaced is on disk before the first key leaves its home.
//   - once gone, router and site are not used any more, and the files may be removed.
type job struct {
	jobs    *Jobs
	name    string
	key     string   // its key in jobs.jobs
	run     plan.Run // empty: the run has no name, and no key moves
	nodes   pslite.Table
	servers int
	dir     string
	learned time.Time
	inUse   time.Time // when it last had a connection
	// scopes are the scopes of its processes on this host. Changed under jobs.mu
	// and mu, read under either: lookups by scope hold jobs.mu only.
	scopes  map[Scope]bool
	unsaved bool // more than the file has
	// expected is how long the processes of a job that was loaded from disk may
	// take to connect, counted from when they can.
	expected time.Duration

	mu      sync.Mutex // guards the rest, and nodes, inUse, unsaved and expected
	site    *migrate.Site
	router  *route.Router
	ledgers map[int32]*ledger.Ledger
	local   map[int32]bool  // ids of nodes on this host
	open    map[waiter]bool // open connections, of nodes of any role
	left    time.Time       // when the last of open closed
	up      map[pair]*requests
	origins map[origin]bool // origins of this host's workers
	taken   uint64          // Waits.Taken when values of all workers followed their keys last
	down    map[pair]*answers
	// Frames for a pair that has no connection now.
	pendingUp, pendingDown map[pair][][]byte
	lost                   uint64    // messages dropped from pendingUp and pendingDown: at their bound, or with the run
	unsure                 bool      // another run may have begun whose table has not come; requests are refused
	late                   bool      // the job was running before this host knew it
	asked                  time.Time // when a proxy last sent a request of its own to a server of this host
	// Since when connections bypass this proxy that it should carry, and when one was
	// last seen; zero: none does.
	pastSince, pastSeen time.Time
	// heard are the other sites that have sent a letter of this run, and so know it;
	// unheardSince is when a move began to wait for others.
	heard        map[string]bool
	unheardSince time.Time
	// After a proxy was away: since when all connections are back, and whether that
	// was long enough ago.
	backSince        time.Time
	settled          bool
	displaced        bool      // keys may be displaced, and job.json says so
	unsupported      string    // why requests are not routed; empty: they are
	resumed          bool      // a proxy before this one carried the job
	resuming         bool      // its ledgers must exist
	unkept           error     // why a proxy after this one could not take the job up; nil: it could
	keptSize         int64     // bytes of its file
	failed           error     // why its requests are refused; nil: they are not
	trouble          string    // of the kept files, as logged
	unkeptAsked      bool      // a write of asked failed, and that is logged
	immovable        string    // why no key moves, as last logged
	checked, touched time.Time // what is kept
	gone             bool
	seen             seen
	saved            string  // seen.store as it is on disk
	used             bool    // it has connections here, as reported to the planner
	toldMoves        []int32 // servers whose moves this host makes, as reported to the planner; nil: nothing is reported yet
	lookedMoves      time.Time
	lostStore        string // the planner's store has lost the owners of keys; its message
	teaching         bool
	journal          *journal    // nil until keys may be displaced
	strangers        uint64      // letters of other runs that came for this job
	ended            atomic.Bool // gone, for readers without mu
	pace             *pace
	gathers          *time.Timer // calls endGathers; nil until a request is gathered
	gathering        bool        // gathers is set
	parting          parting
	movers
}

// newJob makes a job of which nothing has passed yet. Where the placement does not
// fit there is an error beside it, and it must not be routed.
func (j *Jobs) newJob(name string, run plan.Run, nodes pslite.Table, servers int) (*job, error) {
	if servers > route.MaxServers {
		return nil, fmt.Errorf("the job has %d servers, at most %d are possible", servers, route.MaxServers)
	}
	sum := sha256.New()
	fmt.Fprintln(sum, name, run)
	for _, n := range nodes.Nodes() {
		fmt.Fprintln(sum, n.ID, n.Hostname, n.Port)
	}
	x := &job{
		jobs: j, name: name, run: run, nodes: nodes, servers: servers, learned: time.Now(), inUse: time.Now(),
		dir:     filepath.Join(j.opts.Dir, hex.EncodeToString(sum.Sum(nil)[:8])),
		ledgers: map[int32]*ledger.Ledger{}, local: map[int32]bool{},
		scopes: map[Scope]bool{}, open: map[waiter]bool{}, heard: map[string]bool{},
		up: map[pair]*requests{}, origins: map[origin]bool{}, down: map[pair]*answers{},
		pendingUp: map[pair][][]byte{}, pendingDown: map[pair][][]byte{},
		movers: newMovers(j.opts.Handler), pace: newPace(), parting: parting{wanted: j.opts.Parts},
	}
	table, err := j.placed(name, servers)
	if err != nil {
		table = route.NewTable(servers)
	}
	x.router = route.New(table)
	x.router.Pace(x.pace.again)
	x.router.SetFollower(follower{x})
	x.router.Gather()
	return x, err
}

// placed returns the table with which a job begins.
func (j *Jobs) placed(name string, servers int) (*route.Table, error) {
	t := route.NewTable(servers)
	p := j.opts.Placement
	switch {
	case p == nil || p.Job != "" && p.Job != name:
		return t, nil
	case p.K != servers:
		return nil, fmt.Errorf("the placement is for %d machines, the job has %d servers: make one with psidecar partition -k %d", p.K, servers, servers)
	}
	var changes []plan.Range
	for _, r := range p.Runs {
		if r.Keys == nil {
			changes = append(changes, plan.Range{Keys: plan.Keys{First: r.First, Last: r.Last}, Owner: int32(p.Server[r.Owners[0]])})
			continue
		}
		for i, k := range r.Keys {
			changes = append(changes, plan.Range{Keys: plan.One(k), Owner: int32(p.Server[r.Owners[i]])})
		}
	}
	t.Set(changes)
	return t, nil
}

// addLocal notes that a node runs on this host.
func (x *job) addLocal(id int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.local[id] && !x.unsaved || x.gone {
		return
	}
	x.local[id], x.unsaved = true, false
	if err := x.save(); err != nil {
		x.jobs.log.Error("a job would not be known after a restart", "job", x.name, "error", err)
		x.failUnkept()
	}
	x.makeSite()
	x.addWorker(id)
	x.carry()
}

// makeSite makes the site of a job that has just begun: all is known.
func (x *job) makeSite() {
	if x.site == nil {
		x.site = migrate.New(x.names()[0], x.router, uint64(time.Now().UnixNano()))
		x.site.SetOthers(x.otherNames())
		if x.late { // others know what has moved
			if err := x.mayBeDisplaced(); err != nil {
				x.jobs.log.Error("a job would be taken for a new one after a restart", "job", x.name, "error", err)
			}
			x.router.SetCarried(false)
			x.site.Join()
		} else {
			x.router.Open(x.router.Table())
		}
		keys, ranges := x.router.Table().Displaced()
		x.jobs.log.Info("a job begins", "job", x.name, "run", x.run, "servers", x.servers, "displaced_keys", keys, "displaced_ranges", ranges)
	}
	x.site.SetOthers(x.otherNames())
}

// addWorker opens a worker's ledger and makes it known to the router.
func (x *job) addWorker(id int32) {
	if role, _, ok := pslite.Rank(id); !ok || role != pslite.Worker || x.ledgers[id] != nil {
		return
	}
	l := x.openLedger(id)
	x.ledgers[id] = l
	x.router.AddWorker(id, l)
}

// locked runs f on the router and carries out what it has to say.
func (x *job) locked(f func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.site == nil || x.gone {
		return nil
	}
	err := f()
	x.carry()
	x.timeGathers()
	return err
}

// gatherWithin is how long slices of a request may wait for others, to twice that.
const gatherWithin = time.Millisecond

// timeGathers has endGathers called while requests wait for others; the caller
// holds x.mu.
func (x *job) timeGathers() {
	switch gathering := x.router.Gathering(); {
	case gathering == x.gathering:
	case !gathering:
		x.gathers.Stop()
		x.gathering = false
	case x.gathers == nil:
		x.gathers, x.gathering = time.AfterFunc(gatherWithin, x.endGathers), true
	default:
		x.gathers.Reset(gatherWithin)
		x.gathering = true
	}
}

// endGathers lets requests go that have waited long enough.
func (x *job) endGathers() {
	x.locked(func() error {
		x.gathering = false
		x.router.EndGathers()
		return nil
	})
}

// carry carries out what router and site want done; the caller holds x.mu.
func (x *job) carry() {
	for out := x.site.Out(); len(out) > 0; out = x.site.Out() {
		for _, o := range out {
			switch {
			case o.Route != nil:
				x.enqueueOut(o.Route)
			case o.Send != nil:
				x.jobs.log.Debug("to a site", "job", x.name, "to", o.To, "kind", o.Send.Kind, "batch", o.Send.Batch, "keys", o.Send.Keys, "owner", o.Send.Owner)
				x.sendSite(o.To, o.Send)
			case o.Record != nil:
				x.record(o.Record)
			case o.Result != nil:
				x.phases()
				x.result(o.Result)
			case o.Fetch:
				x.fetch()
			}
		}
	}
	x.phases()
}

// tick is called again and again.
func (x *job) tick() {
	now := time.Now()
	x.locked(func() error {
		if x.over(now) {
			x.settleOver()
			return nil
		}
		if len(x.router.Holds()) > 0 || x.resumed && !x.settled {
			x.router.SetCarried(x.carried() == nil)
		}
		x.pace.nextTick()
		x.followTaken()
		x.site.Repeat()
		x.expire(now)
		x.beginParts(now)
		x.beginMoves()
		return nil
	})
	x.tellUse(now)
	x.checkKept(now)
	x.guard()
}

// tellUse reports to the planner when the job gets its first connection here or
// loses its last, or when this host has to carry out other moves.
func (x *job) tellUse(now time.Time) {
	if x.jobs.plans == nil || x.run == "" {
		return
	}
	x.mu.Lock()
	used := !x.over(now) && x.connected()
	changed := used != x.used && (used || x.over(now))
	if changed {
		x.used = used
	}
	if x.toldMoves != nil && now.Sub(x.lookedMoves) >= time.Second {
		x.lookedMoves = now
		changed = changed || !slices.Equal(x.toldMoves, x.servedMoves())
	}
	x.mu.Unlock()
	if changed {
		x.jobs.plans.again()
	}
}

// close ends what a job has open.
func (x *job) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gone = true
	x.ended.Store(true)
	x.needGuard(false)
	for _, l := range x.ledgers {
		if err := l.CloseFile(); err != nil {
			x.jobs.log.Warn("closing a ledger", "job", x.name, "error", err)
		}
	}
	clear(x.ledgers)
	if x.journal != nil {
		x.router.Keep(nil)
		if err := x.journal.close(); err != nil {
			x.jobs.log.Warn("closing a journal", "job", x.name, "error", err)
		}
	}
}

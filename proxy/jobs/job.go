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

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/ledger"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// job is one run of a job, as far as it concerns this host.
//
// Invariants, while mu is not held:
//   - site is nil until a node of this host has the node table; without a site no request is routed.
//   - everything that router and site asked for has been done (carry): their outputs are empty.
//   - up and down have, for each pair of a worker and a server, the open connection; messages for a pair
//     in neither wait in pendingUp and pendingDown.
//   - displaced is on disk before the first key leaves its home. After a kill the next proxy must know that
//     it has to ask, or it would route requests to servers that no longer have the keys.
//   - once gone is set, router and site are not used any more, and the files may have been removed.
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
	// scopes are the scopes of its processes on this host. They are changed, as nodes is, under
	// both jobs.mu and mu, and read under either: lookups by scope hold jobs.mu only.
	scopes  map[Scope]bool
	unsaved bool // scopes has more than the file
	// expected is how long the processes of a job that was loaded from disk may take to connect
	// again, counted from when they can; until then it does not count as over.
	expected time.Duration

	// mu guards the fields below, and inUse, unsaved and expected. It is held for every message of
	// the job, so nothing under it may wait for the network. Files are written under it,
	// deliberately: what a message depends on is on disk before the message goes.
	mu       sync.Mutex
	site     *migrate.Site
	router   *route.Router
	ledgers  map[int32]*ledger.Ledger
	local    map[int32]bool     // ids of the nodes on this host
	partKeys partKeys           // of the router's table, when it was last asked for
	open     map[waiter]bool    // open connections of nodes of any role
	left     time.Time          // when the last of open was closed
	up       map[pair]*requests // connections of this host's workers to servers
	heldUp   map[*requests]bool // connections that wait for room in queues of up and pendingUp, or for the router; see crowd.go
	crowds   map[pair]bool      // pairs of those that wait for room in the router
	origins  map[origin]bool    // origins of this host's workers, at most maxOrigins
	taken    uint64             // Waits.Taken when the waiting values of all workers were last redirected
	down     map[pair]*answers  // connections of servers to this host's workers
	// Open connections of this host's workers to servers: those of up, and those that were replaced.
	flights map[*requests]*flight
	// Pairs whose queues of messages, in up and pendingUp or in down and pendingDown, were full. Some
	// may have room again.
	fullUp, fullDown map[pair]bool
	// Frames for a pair that has no connection now, at most maxPending messages each.
	pendingUp, pendingDown map[pair][][]byte
	lost                   uint64    // messages of the router that were dropped; see lose
	unsure                 bool      // another run may have begun whose table has not come; requests are refused
	late                   bool      // the job was running before this host knew of it
	asked                  time.Time // when a proxy last sent a request of its own to a server of this host; see noteOwn
	// Since when connections bypass this proxy that it should carry, and when that was last seen;
	// zero: none do.
	pastSince, pastSeen time.Time
	// heard are the other sites that have sent a letter of this run, which proves that they know
	// it. unheardSince is when moves began to wait for the others.
	heard        map[string]bool
	unheardSince time.Time
	// After another proxy of this host was replaced, or requests were abandoned: since when all
	// connections are back, and whether that was long enough ago. See settleFor.
	backSince        time.Time
	settled          bool
	abandoned        bool
	displaced        bool      // keys may be displaced, and job.json says so
	unsupported      string    // why requests are not routed, for status; empty: they are
	resumed          bool      // another proxy of this host carried the job before
	answered         bool      // no Record call of that proxy is in flight
	resuming         bool      // while resume opens ledgers, which must exist
	unkept           error     // why the next proxy could not take the job up; nil: it could
	keptSize         int64     // size of its file, in bytes
	failed           error     // why its requests are refused; nil: they are not
	failsUnkept      bool      // failed is unkept, and ends with it
	trouble          string    // of the files, as last logged
	unkeptAsked      bool      // a write of asked has failed, and was logged
	immovable        string    // why keys cannot move, as last logged
	checked, touched time.Time // when the files were last checked and their times refreshed
	gone             bool
	seen             seen
	saved            string  // seen.store as it is on disk
	savedApp         int32   // likewise, the app whose keys move
	savedUses        int     // likewise, the version of the router's uses
	stays            error   // why keys did not move lately that never will, as the job uses them; nil: no such reason
	used             bool    // it has connections here, as last reported to the planner
	toldMoves        []int32 // the servers whose moves this host makes, as last reported; nil: nothing was
	lookedMoves      time.Time
	lostStore        string      // the message of a planner whose store has lost the owners of keys; empty: it has them
	teaching         bool        // a goroutine teaches the planner's store
	journal          *journal    // nil until keys may be displaced
	strangers        uint64      // letters of other runs
	ended            atomic.Bool // gone, for readers without mu
	pace             *pace
	gathers          *time.Timer // calls endGathers; nil until a request was gathered for the first time
	gathering        bool        // gathers is running
	parting          parting
	movers
}

// newJob makes a job of which nothing has passed yet; it is not registered. Where the placement
// does not fit, it returns both the job and an error, and the job must not be routed. Without a
// job, it cannot be carried.
//
// The folder's name is a digest of name, run and nodes, so that another proxy of this host finds it
// by itself and two tenants' jobs of one name have two folders.
func (j *Jobs) newJob(name string, run plan.Run, nodes pslite.Table, servers int) (*job, error) {
	if servers > route.MaxServers {
		return nil, fmt.Errorf("the job has %d servers, at most %d are possible", servers, route.MaxServers)
	}
	// Nodes are part of it: a job that is started again at the same address without a named
	// run gets another folder.
	sum := sha256.New()
	fmt.Fprintln(sum, name, run)
	for _, n := range nodes.Nodes() {
		fmt.Fprintln(sum, n.ID, n.Hostname, n.Port)
	}
	x := &job{
		jobs: j, name: name, run: run, nodes: nodes, servers: servers, savedApp: pslite.Empty, learned: time.Now(), inUse: time.Now(),
		dir:     filepath.Join(j.opts.Dir, hex.EncodeToString(sum.Sum(nil)[:8])),
		ledgers: map[int32]*ledger.Ledger{}, local: map[int32]bool{},
		scopes: map[Scope]bool{}, open: map[waiter]bool{}, heard: map[string]bool{},
		up: map[pair]*requests{}, flights: map[*requests]*flight{}, heldUp: map[*requests]bool{}, origins: map[origin]bool{}, down: map[pair]*answers{},
		pendingUp: map[pair][][]byte{}, pendingDown: map[pair][][]byte{}, crowds: map[pair]bool{}, fullUp: map[pair]bool{}, fullDown: map[pair]bool{},
		movers: newMovers(), pace: newPace(), parting: parting{wanted: j.opts.Parts},
	}
	x.setHandler(j.opts.Handler)
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

// placed returns the table with which a job begins: that of the placement, if there is one for it.
func (j *Jobs) placed(name string, servers int) (*route.Table, error) {
	t := route.NewTable(servers)
	p := j.opts.Placement
	switch {
	case p == nil || p.Job != "" && p.Job != name:
		return t, nil
	case p.K != servers:
		return nil, fmt.Errorf("the placement is for %d machines, but the job has %d servers: create one with psidecar partition -k %d", p.K, servers, servers)
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

// addLocal notes that a node runs on this host. The first one creates the site; a worker gets its
// ledger.
func (x *job) addLocal(id int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.local[id] && !x.unsaved || x.gone {
		return
	}
	x.local[id], x.unsaved = true, false
	if err := x.save(); err != nil {
		x.jobs.log.Error("cannot save a job: it would be unknown after a restart", "job", x.name, "error", err)
		x.failUnkept()
	}
	x.makeSite()
	x.addWorker(id)
	x.carry()
}

// makeSite creates the site and opens the router. A job that was running before this host knew of
// it has to join instead: keys may have moved already.
//
// The number from which the site counts its batches is the clock in nanoseconds: it grows from one
// incarnation to the next without anything on disk.
func (x *job) makeSite() {
	if x.site == nil {
		x.site = migrate.New(x.names()[0], x.router, uint64(time.Now().UnixNano()))
		x.site.SetOthers(x.otherNames())
		// A job that was running before may have keys elsewhere than this host thinks. It passes no
		// request until the other sites and the planner have answered.
		if x.late { // others know what has moved
			if err := x.mayBeDisplaced(); err != nil {
				x.jobs.log.Error("cannot save a job's run: it would be taken for a new one after a restart", "job", x.name, "error", err)
			}
			x.router.SetCarried(false)
			x.site.Join()
		} else {
			x.router.Open(x.router.Table())
		}
		keys, ranges := x.router.Table().Displaced()
		x.jobs.log.Info("job started", "job", x.name, "run", x.run, "servers", x.servers, "displaced_keys", keys, "displaced_ranges", ranges)
	}
	x.renameSite()
	x.site.SetOthers(x.otherNames())
}

// renameSite makes another site where the first nodes here were no workers, and the first worker has another address: the
// hosts of other workers know this one by its workers' addresses. Without a worker the site has moved and held nothing.
func (x *job) renameSite() {
	names := x.names()
	if slices.Contains(names, x.site.Name()) || x.site.Moving() > 0 || len(x.router.Holds()) > 0 {
		return
	}
	joins := x.site.Joining() != nil
	x.site = migrate.New(names[0], x.router, uint64(time.Now().UnixNano()))
	x.site.SetOthers(x.otherNames())
	if joins {
		x.site.Join()
	}
}

// addWorker opens a worker's ledger and adds the worker to the router. Ids of other roles are
// ignored.
func (x *job) addWorker(id int32) {
	if role, _, ok := pslite.Rank(id); !ok || role != pslite.Worker {
		return
	}
	if x.ledgers[id] == nil {
		x.ledgers[id] = x.openLedger(id)
	}
	x.router.AddWorker(id, x.ledgers[id])
}

// locked runs f, which may use router and site, under x.mu, and then carries out what they ask for.
// It does nothing for a job without a site or one that is gone. The error is f's.
func (x *job) locked(f func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.site == nil || x.gone {
		return nil
	}
	// Also after an error: what the router asked for before it must not wait for the next message.
	err := f()
	x.carry()
	x.timeGathers()
	return err
}

// gatherWithin is the time that slices of a request wait for others at least; at most it is twice
// that. It must be well below a round trip to be worth it.
const gatherWithin = time.Millisecond

// timeGathers starts and stops the timer for endGathers, which runs only while requests wait for
// slices; the caller holds x.mu.
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

// endGathers is the timer's function: it ends gatherings that have lasted long enough.
func (x *job) endGathers() {
	x.locked(func() error {
		x.gathering = false
		x.router.EndGathers()
		return nil
	})
}

// carry carries out what router and site ask for, until they ask for nothing more; the caller holds
// x.mu. All of it only queues: messages for connections, letters for siteLinks, calls of the
// planner for goroutines.
func (x *job) carry() {
	for out := x.site.Out(); len(out) > 0; out = x.site.Out() {
		for _, o := range out {
			switch {
			case o.Route != nil:
				x.enqueueOut(o.Route)
			case o.Send != nil:
				x.jobs.log.Debug("letter sent", "job", x.name, "to", o.To, "kind", o.Send.Kind, "batch", o.Send.Batch, "keys", o.Send.Keys, "owner", o.Send.Owner)
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
	x.relieve()
}

// tick is called every tick. It does what depends on time: it repeats, expires and begins moves.
func (x *job) tick() {
	now := time.Now()
	x.locked(func() error {
		// A job that is over has nobody to answer its repetitions; they would go on forever.
		if x.over(now) {
			x.settleOver()
			return nil
		}
		// Whether connections are missing matters only while something is held, or until the job
		// has settled; looking at each pair of a worker and a server costs too much to do it in
		// each tick for nothing.
		if len(x.router.Holds()) > 0 || x.settles() {
			x.router.SetCarried(x.carried() == nil)
		}
		// The order matters: the pace counts this tick before Repeat asks it, and parts add to the
		// work from which beginMoves begins.
		x.pace.nextTick()
		x.followTaken()
		x.wakeHeldUp()
		x.site.Repeat()
		x.expire(now)
		x.beginParts(now)
		x.beginMoves()
		x.settleAdding()
		return nil
	})
	// These take x.mu by themselves: they must run for a job without a site, too.
	x.tellUse(now)
	x.checkKept(now)
	x.guard()
}

// tellUse has the Watch of the planner restarted when the job gets its first connection here or
// loses its last, or when this host has become responsible for other moves: the request of a Watch
// is what tells the planner.
func (x *job) tellUse(now time.Time) {
	if x.jobs.plans == nil || x.run == "" {
		return
	}
	x.mu.Lock()
	used := !x.over(now) && x.connected()
	// A connection that closes and is made again within unusedAfter does not count as a change.
	changed := used != x.used && (used || x.over(now))
	if changed {
		x.used = used
	}
	if x.toldMoves != nil && now.Sub(x.lookedMoves) >= time.Second {
		// servedMoves goes over the whole node table.
		x.lookedMoves = now
		changed = changed || !slices.Equal(x.toldMoves, x.servedMoves())
	}
	x.mu.Unlock()
	if changed {
		x.jobs.plans.again()
	}
}

// close marks a job as gone and closes its files, which stay on disk.
func (x *job) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gone = true
	x.ended.Store(true)
	x.wakeHeldUp()
	x.needGuard(false)
	for _, l := range x.ledgers {
		if err := l.CloseFile(); err != nil {
			x.jobs.log.Warn("closing a ledger", "job", x.name, "error", err)
		}
	}
	clear(x.ledgers)
	// The router must not write to a journal whose file is closed.
	if x.journal != nil {
		x.router.Keep(nil)
		if err := x.journal.close(); err != nil {
			x.jobs.log.Warn("closing a journal", "job", x.name, "error", err)
		}
	}
}

package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// pair is a worker and a server, by rank.
type pair struct{ worker, server int32 }

// job is one job, as far as this host has to do with it.
type job struct {
	jobs    *Jobs
	name    string
	nodes   pslite.Table
	servers int
	dir     string
	learned time.Time
	inUse   time.Time // when it last had connections

	mu      sync.Mutex
	site    *migrate.Site
	router  *route.Router
	ledgers map[int32]*ledger
	local   map[int32]bool // nodes of this host
	up      map[pair]*requests
	down    map[pair]*answers
	// What waits for a connection.
	pendingUp, pendingDown map[pair][][][]byte
	lost                   uint64 // messages for which there was no room
	displaced              bool   // keys may be displaced, and it is on disk
	closedFail             bool   // FailClosed was called
	unsupported            string // why requests are not routed
	gone                   bool
	movers
}

// maxPending is how many messages wait for one connection at most.
const maxPending = 4096

// newJob makes a job of which nothing has passed yet.
func (j *Jobs) newJob(name string, nodes pslite.Table, servers int) (*job, error) {
	if servers > route.MaxServers {
		return nil, fmt.Errorf("the job has %d servers, at most %d are possible", servers, route.MaxServers)
	}
	sum := sha256.New()
	for _, n := range nodes.Nodes() {
		fmt.Fprintln(sum, n.ID, n.Hostname, n.Port)
	}
	x := &job{
		jobs: j, name: name, nodes: nodes, servers: servers, learned: time.Now(), inUse: time.Now(),
		dir:     filepath.Join(j.opts.Dir, hex.EncodeToString(sum.Sum(nil)[:8])),
		ledgers: map[int32]*ledger{}, local: map[int32]bool{},
		up: map[pair]*requests{}, down: map[pair]*answers{},
		pendingUp: map[pair][][][]byte{}, pendingDown: map[pair][][][]byte{},
		movers: newMovers(j.opts.Handler),
	}
	table, err := j.placed(name, servers)
	if err != nil {
		return nil, err
	}
	x.router = route.New(table)
	if j.opts.Planner != "" {
		x.router.KeysMove()
	}
	return x, nil
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
	if x.local[id] || x.gone {
		return
	}
	x.local[id] = true
	if err := x.save(); err != nil {
		x.jobs.log.Error("a job would not be known after a restart", "job", x.name, "error", err)
	}
	x.begin()
	x.addWorker(id)
	x.carry()
}

// begin makes the site of a job that has just begun: all is known.
func (x *job) begin() {
	if x.site == nil {
		x.site = migrate.New(x.names()[0], x.router, uint64(time.Now().UnixNano()))
		x.router.Open(x.router.Table())
		keys, ranges := x.router.Table().Displaced()
		x.jobs.log.Info("a job begins", "job", x.name, "servers", x.servers, "displaced_keys", keys, "displaced_ranges", ranges)
	}
	x.site.SetOthers(x.otherNames())
}

// addWorker opens a worker's ledger and makes it known to the router.
func (x *job) addWorker(id int32) {
	if role, _, ok := pslite.Rank(id); !ok || role != pslite.Worker || x.ledgers[id] != nil {
		return
	}
	l, err := openLedger(filepath.Join(x.dir, fmt.Sprintf("worker-%d", id)), x.servers)
	if err != nil {
		x.unsupported = err.Error()
		x.jobs.log.Error("requests of a worker are not routed", "job", x.name, "worker", id, "error", err)
		return
	}
	x.ledgers[id] = l
	x.router.AddWorker(id, l)
}

// names are those of this host among the sites: the addresses of its workers,
// or of its servers where it has none, ascending.
func (x *job) names() []string {
	for _, wanted := range []pslite.Role{pslite.Worker, pslite.Server, pslite.Scheduler} {
		set := map[string]bool{}
		for _, n := range x.nodes.Nodes() {
			if role, _, ok := pslite.Rank(n.ID); ok && role == wanted && x.local[n.ID] {
				set[siteName(n)] = true
			}
		}
		if len(set) > 0 {
			return slices.Sorted(maps.Keys(set))
		}
	}
	return []string{""}
}

func siteName(n pslite.Node) string {
	if ip, err := netip.ParseAddr(n.Hostname); err == nil {
		return ip.Unmap().String()
	}
	return n.Hostname
}

// otherNames are the hosts of all other workers.
func (x *job) otherNames() []string {
	mine, set := x.names(), map[string]bool{}
	for _, n := range x.nodes.Nodes() {
		if role, _, ok := pslite.Rank(n.ID); ok && role == pslite.Worker && !slices.Contains(mine, siteName(n)) {
			set[siteName(n)] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
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
	return err
}

// carry carries out what router and site want done; x.mu is locked.
func (x *job) carry() {
	for out := x.site.Out(); len(out) > 0; out = x.site.Out() {
		for _, o := range out {
			switch {
			case o.Route != nil:
				x.put(o.Route)
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

// put hands a message to the connection it belongs to, or keeps it until there
// is one.
func (x *job) put(o *route.Out) {
	p := pair{o.Worker, o.Server}
	if o.ToWorker {
		if c := x.down[p]; c == nil || !c.put(o.Frames) {
			x.pendingDown[p] = x.keep(x.pendingDown[p], o.Frames)
		}
		return
	}
	if c := x.up[p]; c == nil || !c.put(o.Frames) {
		x.pendingUp[p] = x.keep(x.pendingUp[p], o.Frames)
	}
}

func (x *job) keep(queue [][][]byte, frames [][]byte) [][][]byte {
	if len(queue) >= maxPending {
		x.lost++
		return queue
	}
	return append(queue, frames)
}

func rankOf(id int32) int32 {
	_, rank, _ := pslite.Rank(id)
	return int32(rank)
}

// join makes a worker's connection to a server the one over which its requests
// go.
func (x *job) join(c *requests) {
	if !c.routed() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p := pair{c.sender, rankOf(c.peer)}
	x.up[p] = c
	for _, frames := range x.pendingUp[p] {
		c.put(frames)
	}
	delete(x.pendingUp, p)
}

func (x *job) leave(c *requests) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := (pair{c.sender, rankOf(c.peer)}); x.up[p] == c {
		delete(x.up, p)
	}
}

// joinDown does the same for a server's connection to a worker.
func (x *job) joinDown(c *answers) {
	if !c.routed() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p := pair{c.peer, rankOf(c.sender)}
	x.down[p] = c
	for _, frames := range x.pendingDown[p] {
		c.put(frames)
	}
	delete(x.pendingDown, p)
}

func (x *job) leaveDown(c *answers) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := (pair{c.peer, rankOf(c.sender)}); x.down[p] == c {
		delete(x.down, p)
	}
}

// errUnroutable is why a request cannot be served: its answers would go wrong.
var errUnroutable = errors.New("requests of this dialect cannot be split")

func (x *job) request(c *requests, m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	err = x.locked(func() error {
		if d == pslite.BytePSRaw {
			if !x.router.Table().Touches(m.Keys()) {
				passes = true
				x.unsupported = "BytePS answers on the asker's connection; its keys are not moved"
				return nil
			}
			return errUnroutable
		}
		x.worker(c.sender)
		passes = x.router.Request(c.sender, rankOf(c.peer), &m.Meta, m.Keys())
		return nil
	})
	return passes, err
}

// worker makes sure that the router knows a worker that was seen on this host.
func (x *job) worker(id int32) {
	if x.ledgers[id] == nil {
		x.local[id] = true
		x.addWorker(id)
		if err := x.save(); err != nil {
			x.jobs.log.Error("a worker would not be known after a restart", "job", x.name, "worker", id, "error", err)
		}
	}
}

func (x *job) takeRequest(c *requests, m *pslite.Message, d pslite.Dialect) error {
	return x.locked(func() error { return x.router.Take(c.sender, rankOf(c.peer), m, d) })
}

func (x *job) workerAck(c *requests, signature uint64) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.sender)
		passes = x.router.WorkerAck(c.sender, rankOf(c.peer), signature)
		return nil
	})
	return passes, err
}

func (x *job) serverAck(c *answers, signature uint64) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.peer)
		passes = x.router.ServerAck(rankOf(c.sender), c.peer, signature)
		return nil
	})
	return passes, err
}

func (x *job) answer(c *answers, m *pslite.Message, d pslite.Dialect) (passes bool, err error) {
	err = x.locked(func() error {
		x.worker(c.peer)
		passes = x.router.Answer(rankOf(c.sender), c.peer, &m.Meta)
		return nil
	})
	return passes, err
}

func (x *job) takeAnswer(c *answers, m *pslite.Message, d pslite.Dialect) error {
	return x.locked(func() error { return x.router.TakeAnswer(rankOf(c.sender), c.peer, m, d) })
}

// tick is called again and again.
func (x *job) tick() {
	x.locked(func() error {
		x.site.Repeat()
		x.expire(time.Now())
		x.beginMoves()
		return nil
	})
	x.guard()
}

// unusedAfter is how long a job has no connection when it counts as ended.
const unusedAfter = 2 * time.Second

// guard has connections fail rather than go past this proxy while keys are, or
// may be, displaced.
func (x *job) guard() {
	x.mu.Lock()
	if len(x.up)+len(x.down) > 0 {
		x.inUse = time.Now()
	}
	wanted := x.site != nil && time.Since(x.inUse) < unusedAfter && (!x.router.Table().Empty() || len(x.router.Holds()) > 0 || !x.router.Ready())
	change := wanted != x.closedFail && !x.gone
	x.mu.Unlock()
	if !change || x.jobs.opts.FailClosed == nil {
		return
	}
	x.jobs.start(func(ctx context.Context) {
		if err := x.jobs.opts.FailClosed(ctx, x.name, wanted); err != nil {
			x.jobs.log.Debug("connections that pass the proxy by cannot be kept from it yet", "job", x.name, "error", err)
			return
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.closedFail = wanted
	})
}

// close ends what a job has open.
func (x *job) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gone = true
	for _, l := range x.ledgers {
		if err := l.close(); err != nil {
			x.jobs.log.Warn("closing a ledger", "job", x.name, "error", err)
		}
	}
	clear(x.ledgers)
}

func (x *job) state() State {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := State{Job: x.name, Guarded: x.closedFail, Workers: []int32{}, Moved: x.moved, MovedBytes: x.movedBytes, Refused: x.refusedKeys, Handler: x.handler.String(), HeldMicros: slices.Clone(x.held.whole), PhaseMicros: x.held.medians()}
	if x.site == nil {
		return s
	}
	s.Workers = append(s.Workers, x.router.Workers()...)
	s.Displaced, s.Ranges = x.router.Table().Displaced()
	s.Ready, s.Joining, s.Holds = x.router.Ready(), x.site.Joining(), len(x.router.Holds())
	s.Waiting, _ = x.router.Waiting()
	s.UnderWay = x.router.UnderWay()
	s.UnderWay = s.UnderWay[:min(len(s.UnderWay), 8)]
	c := x.router.Counts()
	s.Plain, s.Split, s.Parts, s.Held, s.Repeated = c.Plain, c.Split, c.Parts, c.Held, c.Repeated
	return s
}

package aggregate

import (
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// Bounds on the jobs of a scope, and on scopes.
const (
	maxJobs   = 16
	maxScopes = 1024
)

// job is a run of a job with processes in one scope, as its node table has it. Table.mu
// guards it.
type job struct {
	scheduler string
	trial     *payoff.Trial // a carried push waits for an answer, which may cost more than it saves; nil: none
	nodes     pslite.Table
	groups    map[int32]*group // by server
	resends   *atomic.Bool     // an ACK was heard: it uses PS_RESEND
}

// pair is what was heard over a server's connections to a worker of this host. The mutex of
// the server's group guards it.
type pair struct {
	worker int32
	hears  int    // connections over which answers were heard, and which have not ended
	breaks uint64 // of those that have ended
	// pending are the pushes that have gone and are not answered, at most maxItems.
	pending map[exchange]bool
}

// takeNodeTable learns from a node table. One that has a known node elsewhere is of another
// run, and replaces the job.
func (t *Table) takeNodeTable(scope jobs.Scope, m *pslite.Meta) {
	at := ""
	for _, n := range m.Control.Nodes {
		if n.ID == pslite.SchedulerID {
			at = net.JoinHostPort(n.Hostname, strconv.Itoa(int(n.Port)))
		}
	}
	// A recovery's table for nodes that stayed: it has no scheduler, so the job is unknown.
	if at != "" && t.learn(scope, at, m) {
		t.save()
	}
}

// learn reports whether the node table of the job of a scheduler has changed what is known.
func (t *Table) learn(scope jobs.Scope, at string, m *pslite.Meta) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.jobs[scope]
	if all == nil {
		t.addScope(scope)
	}
	for i, j := range all {
		if j.scheduler != at {
			continue
		}
		// The same run: a recovery, or another process of the scope that gets its table.
		if !j.moved(m) {
			return j.nodes.Learn(m)
		}
		all = append(all[:i], all[i+1:]...)
		t.forget(j)
		break
	}
	// The oldest goes. Its connections are not affected; new ones of it go unsummed.
	if len(all) >= maxJobs {
		t.forget(all[0])
		all = all[1:]
	}
	t.jobs[scope] = append(all, t.newJob(at, m))
	return true
}

// newJob returns the job of a scheduler, with the nodes of a table.
func (t *Table) newJob(scheduler string, m *pslite.Meta) *job {
	j := &job{scheduler: scheduler, groups: map[int32]*group{}, resends: new(atomic.Bool)}
	if t.opts.Trials != nil {
		j.trial = &payoff.Trial{Among: t.opts.Trials}
	}
	j.nodes.Learn(m)
	return j
}

// addScope makes room for a scope: the oldest one goes, with its jobs. The caller holds
// t.mu.
func (t *Table) addScope(scope jobs.Scope) {
	if len(t.scopes) >= maxScopes {
		for _, j := range t.jobs[t.scopes[0]] {
			t.forget(j)
		}
		delete(t.jobs, t.scopes[0])
		t.scopes = t.scopes[1:]
	}
	t.scopes = append(t.scopes, scope)
}

// moved reports whether a table has a known node at another address.
func (j *job) moved(m *pslite.Meta) bool {
	for _, n := range j.nodes.Nodes() {
		for _, o := range m.Control.Nodes {
			if o.ID == n.ID && (o.Hostname != n.Hostname || o.Port != n.Port) {
				return true
			}
		}
	}
	return false
}

// forget keeps a job's counts. Its connections go on with their groups.
func (t *Table) forget(j *job) {
	for _, g := range j.groups {
		c := g.figures()
		c.HeldBytes = 0
		t.past.addCounts(c)
	}
}

// findJob returns the job of a scope that has a node at an address, the latest first, and the
// node's id.
func (t *Table) findJob(scope jobs.Scope, at netip.AddrPort) (j *job, id int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.jobs[scope]
	for i := len(all) - 1; i >= 0; i-- {
		if id, ok := all[i].nodes.At(at); ok {
			return all[i], id
		}
	}
	return nil, pslite.Empty
}

// meet returns the group of a server, and the pair of it and a worker.
func (t *Table) meet(j *job, worker, server int32) (*group, *pair) {
	t.mu.Lock()
	g := j.groups[server]
	if g == nil {
		g = newGroup(&t.opts, j, server)
		j.groups[server] = g
	}
	t.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g, g.pairOf(worker)
}

func isRole(id int32, role pslite.Role) bool {
	r, _, ok := pslite.Rank(id)
	return ok && r == role
}

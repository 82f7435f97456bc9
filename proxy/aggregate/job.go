package aggregate

import (
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/pslite"
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
	trial     *trial // nil: none
	nodes     pslite.Table
	groups    map[int32]*group // by server
	fresh     map[int32]bool   // workers whose processes have started since this proxy has
	dir       string           // of its groups' files; empty: there are none
}

// pair is what was heard over a server's connections to a worker of this host. The mutex of
// the server's group guards it.
type pair struct {
	worker  int32
	hears   int    // connections that are heard now
	breaks  uint64 // connections that have ended
	answers uint64 // to pushes
	resends bool   // the server has sent an ACK: the job uses PS_RESEND
	past
}

// takeNodeTable learns from a node table. One that has a known node elsewhere is of another
// run, and replaces the job. It reports whether it was a whole one, as a process gets it when it
// starts.
func (t *Table) takeNodeTable(scope jobs.Scope, m *pslite.Meta) (whole bool) {
	at := ""
	for _, n := range m.Control.Nodes {
		if n.ID == pslite.SchedulerID {
			at = net.JoinHostPort(n.Hostname, strconv.Itoa(int(n.Port)))
		}
	}
	// A recovery's table for nodes that stayed: it has no scheduler, so the job is unknown.
	if at == "" {
		return false
	}
	if t.learn(scope, at, m) {
		t.save()
	}
	return true
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
		os.RemoveAll(j.dir)
		break
	}
	// The oldest goes. Its connections are not affected; new ones of it go unsummed.
	if len(all) >= maxJobs {
		t.forget(all[0])
		os.RemoveAll(all[0].dir)
		all = all[1:]
	}
	t.jobs[scope] = append(all, t.newJob(scope, at, m))
	return true
}

// newJob returns the job of a scheduler, with the nodes of a table.
func (t *Table) newJob(scope jobs.Scope, scheduler string, m *pslite.Meta) *job {
	j := &job{scheduler: scheduler, groups: map[int32]*group{}, fresh: map[int32]bool{}, dir: t.opts.dirOf(scope, scheduler)}
	if t.opts.Try {
		j.trial = &trial{}
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
			os.RemoveAll(j.dir)
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
	g := t.groupOf(j, server)
	t.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g, g.pairOf(worker)
}

// groupOf returns the group of a server. The caller holds t.mu.
func (t *Table) groupOf(j *job, server int32) *group {
	g := j.groups[server]
	if g == nil {
		g = newGroup(&t.opts, j, server)
		j.groups[server] = g
	}
	return g
}

// restartWorker notes that the worker at an address has started, and forgets what another process sent in
// its place.
func (t *Table) restartWorker(scope jobs.Scope, at netip.AddrPort) {
	j, worker := t.findJob(scope, at)
	if j == nil || !isRole(worker, pslite.Worker) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	j.fresh[worker] = true
	for _, server := range serversIn(j.dir) {
		t.groupOf(j, server)
	}
	for _, g := range j.groups {
		g.mu.Lock()
		g.fresh[worker] = true
		g.restartPair(g.pairOf(worker))
		g.mu.Unlock()
	}
}

// serversIn returns the servers about which there are files in a job's directory.
func serversIn(dir string) (servers []int32) {
	if dir == "" {
		return nil
	}
	all, _ := os.ReadDir(dir) // as a rule it does not exist
	for _, d := range all {
		if id, err := strconv.ParseInt(d.Name(), 10, 32); err == nil && d.IsDir() && isRole(int32(id), pslite.Server) {
			servers = append(servers, int32(id))
		}
	}
	return servers
}

func isRole(id int32, role pslite.Role) bool {
	r, _, ok := pslite.Rank(id)
	return ok && r == role
}

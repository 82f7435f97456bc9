package jobs

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// claim is a kind of statement by a peer that has to be verified: PS-lite has no authentication,
// and whoever is believed to be the scheduler or a node can redirect a job's requests.
type claim string

// The kinds of claims that are refused, as they are called in metrics and state.
const (
	claimTable     claim = "table"     // a node table not from the scheduler that the processes have dialled
	claimScheduler claim = "scheduler" // a node table from a process that is not the job's scheduler
	claimNode      claim = "node"      // a connection in the name of a node that is elsewhere
	claimLetter    claim = "letter"    // a letter between sites not from the host of its sender
	claimSite      claim = "site"      // a link for letters beyond those that a host may have
	claimRun       claim = "run"       // a letter of another run
	claimJob       claim = "job"       // a job, or a node, beyond the bounds
)

var claims = []claim{claimTable, claimScheduler, claimNode, claimLetter, claimSite, claimJob, claimRun}

// refuse counts a claim that was not believed, and logs it at a bounded rate.
func (j *Jobs) refuse(c claim, text string, attrs ...any) {
	n := j.countRefused(c)
	if j.refusals.Allow() {
		j.log.Warn(text, append([]any{"claim", c, "refused_so_far", n}, attrs...)...)
	}
}

// countRefused counts a refused claim, and returns the number of that kind so far.
func (j *Jobs) countRefused(c claim) uint64 {
	j.refusedMu.Lock()
	defer j.refusedMu.Unlock()
	j.refused[c]++
	return j.refused[c]
}

// RefuseSite counts a link for letters that was refused by package proxy.
func (j *Jobs) RefuseSite(source netip.Prefix) {
	j.refuse(claimSite, "too many links between sites", "source", source)
}

// Refused returns the number of refused claims by kind.
func (j *Jobs) Refused() map[string]uint64 {
	j.refusedMu.Lock()
	defer j.refusedMu.Unlock()
	all := map[string]uint64{}
	for _, c := range claims {
		all[string(c)] = j.refused[c]
	}
	return all
}

// Limits of the rate and burst at which refusals are logged.
const (
	refusalsPerSecond = 1
	refusalsAtOnce    = 20
)

// verifyWithin bounds how long a connection waits for the verification of its peer.
const verifyWithin = 5 * time.Second

// from returns nil if p is the proxy of that host. It may ask over the network, and blocks for at
// most verifyWithin.
func (j *Jobs) from(p Peer, host netip.Addr) error {
	ctx, cancel := context.WithTimeout(j.life(), verifyWithin)
	defer cancel()
	return p.At(ctx, host)
}

// life returns Run's context, and before Run one that does not end.
func (j *Jobs) life() context.Context {
	j.runMu.Lock()
	defer j.runMu.Unlock()
	if j.ctx == nil {
		return context.Background()
	}
	return j.ctx
}

// acceptTable reports whether to learn from a node table on its way to a process of this host. A
// table is believed that comes from the proxy of the host which the process's scope has dialled as
// the scheduler's; the process itself chose that address, so no peer can make it up. An error means
// that the table must not even reach the process.
func (c *answers) acceptTable(m *pslite.Meta) (learn bool, err error) {
	if c.from == nil {
		return true, nil // not over a link
	}
	var t pslite.Table
	t.Learn(m)
	c.jobs.mu.RLock()
	x, _ := c.jobs.at(c.destination, c.scope)
	if x != nil && jobName(&t) == "" { // of a recovery: the rest is known
		t = x.nodes
	}
	c.jobs.mu.RUnlock()
	if jobName(&t) == "" {
		return false, nil // nothing can be learned from it
	}
	// The other direction of the process's connection may be seen a moment later than this table.
	at, ok := c.jobs.scheduler(&t, c.scope)
	for end := time.Now().Add(meetScheduler); !ok && time.Now().Before(end); at, ok = c.jobs.scheduler(&t, c.scope) {
		time.Sleep(meetAgain)
	}
	why := errors.New("no process there has connected to that scheduler through this proxy")
	if ok {
		why = c.jobs.from(c.from, at.Addr())
	}
	if why == nil {
		return true, nil
	}
	c.jobs.refuse(claimTable, "node table refused: it does not come from the job's scheduler", "job", jobName(&t), "to", c.destination, "scope", c.scope, "error", why)
	// Passing the table without learning from it is safe here: this host does not route the job,
	// and its site answers no letters, so that no other host can move keys of it either.
	if !ok && x == nil && c.jobs.opts.Placement == nil {
		// The process may have met its scheduler before the agent found it. Keys
		// do not move where one host does not know the job.
		return false, nil
	}
	return false, reason.Errorf(reason.Forged, "a node table of job %s: %w", jobName(&t), why)
}

// The scheduler's table can overtake the news that the process has connected to it, by a moment.
const (
	meetScheduler = time.Second
	meetAgain     = 20 * time.Millisecond
)

// acceptSender returns nil if the connection comes from the host of the node that its READY names.
func (c *answers) acceptSender(x *job) error {
	if c.from == nil {
		return nil
	}
	host, ok := x.hostOf(c.sender)
	if !ok {
		return nil // by name; what it is called here is not known
	}
	why := c.jobs.from(c.from, host)
	if why == nil {
		return nil
	}
	c.jobs.refuse(claimNode, "connection refused: it does not come from the host of the node that it claims", "job", x.name, "node", c.sender, "host", host, "error", why)
	return reason.Errorf(reason.Forged, "a connection in the name of node %d of job %s: %w", c.sender, x.name, why)
}

// believed reports whether the sender is where the job's table has it. It verifies that once for
// each job.
func (c *answers) believed(x *job) bool {
	c.mu.Lock()
	vetted := c.vetted == x
	c.mu.Unlock()
	if vetted {
		return true
	}
	// Without c.mu: the verification may ask the other host. Two goroutines may do so at the same
	// time, with the same result.
	err := c.acceptSender(x)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused = err; err == nil {
		c.vetted = x
	}
	return err == nil
}

// refusal returns why the connection is refused, or nil.
func (c *answers) refusal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// hostOf returns the address of a node's host, and false where the table has a name instead.
func (x *job) hostOf(id int32) (netip.Addr, bool) {
	x.jobs.mu.RLock()
	defer x.jobs.mu.RUnlock()
	for _, n := range x.nodes.Nodes() {
		if n.ID == id {
			ip, err := netip.ParseAddr(n.Hostname)
			return ip.Unmap(), err == nil
		}
	}
	return netip.Addr{}, false
}

// acceptScheduler returns nil if a process of this host may send that node table. It must be in the
// scope of the process that listens at the scheduler's address; a recovery's table has no
// scheduler, and then it must be in the scope of a scheduler that has sent its table to the
// destination. Where the agent cannot tell, the table passes: the far proxy judges it, too.
func (c *requests) acceptScheduler(m *pslite.Meta) error {
	if c.jobs.opts.Owner == nil || !c.scope.Known() {
		return nil
	}
	var all []netip.AddrPort
	named := false
	for _, n := range m.Control.Nodes {
		if n.ID != pslite.SchedulerID {
			continue
		}
		named = true
		if ip, err := netip.ParseAddr(n.Hostname); err == nil {
			all = []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), uint16(n.Port))}
		}
	}
	// A recovery's table: whose it is follows from the destination.
	if !named {
		all = c.jobs.schedulersOf(c.destination, c.scope)
	}
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.jobs.life(), verifyWithin)
	defer cancel()
	for _, at := range all {
		cgroup, _, err := c.jobs.opts.Owner(ctx, c.scope.Netns, at)
		// An agent that cannot tell is no reason to break a job.
		if err != nil || cgroup == c.scope.Cgroup {
			return nil
		}
	}
	c.jobs.refuse(claimScheduler, "process refused: it sent a node table but is not the scheduler of that job", "scheduler", all[0], "to", c.destination, "scope", c.scope)
	return reason.Errorf(reason.Forged, "a node table of a process that is not the scheduler at %s", all[0])
}

// acceptNode returns an error where a process of this host claims to be a node that belongs to
// another scope.
func (c *requests) acceptNode() error {
	if c.sender == pslite.Empty || !c.scope.Known() {
		return nil
	}
	c.jobs.mu.RLock()
	var whose *job
	mine := false
	for _, x := range c.jobs.jobs {
		if _, ok := x.nodes.At(c.destination); !ok || !x.near(c.scope) {
			continue
		}
		if x.hasScope(c.scope) {
			mine = true
		} else if x.isLocal(c.sender) {
			// A process that claims a node of a job in its own network namespace, to which it does
			// not belong, while no job of its own has the destination.
			whose = x
		}
	}
	c.jobs.mu.RUnlock()
	if whose == nil || mine {
		return nil
	}
	c.jobs.refuse(claimNode, "process refused: it claims to be a node of another job", "job", whose.name, "node", c.sender, "to", c.destination, "scope", c.scope)
	return reason.Errorf(reason.Forged, "a process that claims to be node %d of job %s", c.sender, whose.name)
}

// isLocal reports whether a node of the job runs on this host.
func (x *job) isLocal(id int32) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.local[id]
}

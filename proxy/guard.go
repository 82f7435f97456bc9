package proxy

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/health"
)

// GuardAgent sets the policies of cgroups. It is a [handover.Client].
type GuardAgent interface {
	// SetFailClosed has connects of a cgroup fail while no proxy can take them (on), or go
	// direct. It blocks until the agent has confirmed that, or ctx ends.
	SetFailClosed(ctx context.Context, cgroup uint64, on bool) error
	// Session returns the number of agents so far that have named all of their listeners; 0
	// while there is none. A change means that policies have to be sent again.
	Session() uint64
}

// GuardedListener is a listener that takes the connections of a cgroup.
type GuardedListener struct {
	ID, Cgroup uint64
	Job        string // empty: unknown, or there are several
}

// Guard keeps the policies of one host's cgroups. The zero value is ready for use, and its
// methods are safe for concurrent use.
//
// What is needed (needs, listeners) and what the agent has confirmed (told) are kept apart,
// and Run makes the second follow the first. So callers never wait for the agent, an agent
// may come and go, and repeating a policy is harmless.
//
// Invariant: a cgroup that the agent may have closed for this Guard is in told until the
// agent has confirmed that it is open again. So no failure, in whichever order, leaves a
// cgroup closed forever.
type Guard struct {
	Log *slog.Logger // nil: the default one

	mu        sync.Mutex // guards all below; never held while the agent is asked
	agent     GuardAgent // nil: nothing is intercepted
	listeners map[uint64]GuardedListener
	needs     map[string]*need // by run
	// told has the policies that the present agent has confirmed; true: closed. A cgroup
	// stays in it while a run needs it, and until the agent has confirmed that none does.
	// Other cgroups are never touched: whoever closed one of them may know more than this
	// process.
	told    map[uint64]bool
	session uint64    // of the agent that has confirmed them
	serving time.Time // when the first agent had named all of its listeners
	frozen  bool      // nothing is opened any more
	failed  uint64    // attempts, since the start
	problem string    // error of the last attempt; empty: it succeeded
	logged  time.Time
}

// need is a run whose connections must not bypass the proxy, with the cgroups in which its
// job was seen.
type need struct {
	job     string
	cgroups map[uint64]bool
	over    bool // kept until the agent has confirmed it
}

// Intercepting sets the agent, through which policies are set from now on.
func (g *Guard) Intercepting(a GuardAgent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.agent = a
}

// Add adds a listener until the returned function is called. Other listeners of the same
// cgroup are not affected by that.
func (g *Guard) Add(l GuardedListener) (remove func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners == nil {
		g.listeners = map[uint64]GuardedListener{}
	}
	g.listeners[l.ID] = l
	for _, n := range g.needs {
		n.meet(l)
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.listeners, l.ID)
	}
}

// meet adds the cgroup of a listener that may be the job's: one of an unknown job counts for
// all.
func (n *need) meet(l GuardedListener) {
	if l.Job == n.job || l.Job == "" {
		n.cgroups[l.Cgroup] = true
	}
}

// Need sets whether connections of a run of a job must fail rather than bypass the proxy. It
// does not block, and may be repeated; Run applies it.
func (g *Guard) Need(run, job string, on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.needs[run]; n != nil {
		n.over = !on
		return
	}
	if !on {
		return
	}
	if g.needs == nil {
		g.needs = map[string]*need{}
	}
	n := &need{job: job, cgroups: map[uint64]bool{}}
	for _, l := range g.listeners {
		n.meet(l)
	}
	g.needs[run] = n
}

// Guarded reports whether the agent has confirmed that connections of a run fail rather than
// bypass the proxy, in all cgroups where the job was seen, one at least, and has not
// confirmed yet that they do not any more.
func (g *Guard) Guarded(run string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.needs[run]
	if n == nil || len(n.cgroups) == 0 {
		return false
	}
	for id := range n.cgroups {
		if !g.told[id] {
			return false
		}
	}
	return true
}

// Serving returns the time since when processes of this host reach the proxy: before it a job
// without connections is not over. It is false while no agent has named all its listeners.
func (g *Guard) Serving() (since time.Time, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.serving, g.agent == nil || !g.serving.IsZero()
}

// Freeze opens nothing any more. The proxy calls it when it ends: its connections end with
// it, which proves nothing about the jobs, and their processes must not bypass the next
// proxy.
func (g *Guard) Freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen = true
}

// GuardState is the guard's part of the proxy's state.
type GuardState struct {
	Closed  int    `json:"closed"`            // cgroups that fail closed, as the agent has confirmed
	Pending int    `json:"pending"`           // cgroups whose policy is still to be changed
	Failed  uint64 `json:"failed"`            // attempts to change a policy, since the start
	Problem string `json:"problem,omitempty"` // error of the last attempt
}

// State returns the guard's state.
func (g *Guard) State() GuardState {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := GuardState{Failed: g.failed, Problem: g.problem, Pending: len(g.due())}
	for _, on := range g.told {
		if on {
			s.Closed++
		}
	}
	return s
}

// every is the period at which confirmed policies are compared with the needed ones.
const every = 100 * time.Millisecond

// Run sends the agent what it has to know, until ctx ends.
func (g *Guard) Run(ctx context.Context, beat *health.Beat) {
	defer beat.End()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		beat.Beat()
		g.apply(ctx, beat)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// change is a policy that the agent does not have yet.
type change struct {
	cgroup uint64
	closed bool
}

// wanted returns the cgroups that some run needs closed; the caller holds g.mu.
func (g *Guard) wanted() map[uint64]bool {
	wanted := map[uint64]bool{}
	for _, n := range g.needs {
		for id := range n.cgroups {
			wanted[id] = wanted[id] || !n.over
		}
	}
	maps.DeleteFunc(wanted, func(_ uint64, closed bool) bool { return !closed })
	return wanted
}

// forgetEnded forgets runs that are over, once the agent has opened all cgroups that only
// they needed; the caller holds g.mu.
func (g *Guard) forgetEnded() {
	wanted := g.wanted()
	maps.DeleteFunc(g.needs, func(_ string, n *need) bool {
		for id := range n.cgroups {
			if _, told := g.told[id]; told && !wanted[id] {
				return false
			}
		}
		return n.over
	})
}

// due returns the policies to send to the agent, closing ones first: a cgroup must be closed
// before keys leave, and may be opened late. The caller holds g.mu.
func (g *Guard) due() (all []change) {
	wanted := g.wanted()
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if !g.told[id] {
			all = append(all, change{id, true})
		}
	}
	if g.frozen {
		return all
	}
	for _, id := range slices.Sorted(maps.Keys(g.told)) {
		if !wanted[id] {
			all = append(all, change{id, false})
		}
	}
	return all
}

// patience is how long the agent may take to set one policy.
const patience = 2 * time.Second

// apply sends the agent the policies that it lacks, one at a time, each chosen anew: the
// needed ones may change while the agent is asked. It stops at the first failure, and the
// next tick tries again.
func (g *Guard) apply(ctx context.Context, beat *health.Beat) {
	for ctx.Err() == nil {
		beat.Beat()
		g.mu.Lock()
		agent := g.agent
		if agent == nil {
			g.mu.Unlock()
			return
		}
		// A new agent has none of the policies, or those of another proxy.
		g.meetAgent(agent.Session())
		g.forgetEnded()
		due := g.due()
		if len(due) == 0 {
			g.problem = ""
			g.mu.Unlock()
			return
		}
		c := due[0]
		if g.told == nil {
			g.told = map[uint64]bool{}
		}
		if c.closed {
			g.told[c.cgroup] = false // it may be closed from now on, whatever the agent answers
		}
		g.mu.Unlock()
		// Without the lock: the agent may take seconds, and Need is called under jobs' locks.
		asked, cancel := context.WithTimeout(ctx, patience)
		err := agent.SetFailClosed(asked, c.cgroup, c.closed)
		cancel()
		if g.confirm(c, err, ctx); err != nil {
			return
		}
	}
}

// meetAgent forgets what a previous agent has confirmed; the caller holds g.mu.
func (g *Guard) meetAgent(session uint64) {
	if session == 0 || session == g.session {
		return
	}
	g.session = session
	if g.serving.IsZero() {
		g.serving = time.Now()
	}
	for id := range g.told {
		g.told[id] = false
	}
}

// repeatLog is the interval at which a failure that persists is logged.
const repeatLog = 10 * time.Second

// confirm records the result of setting a policy. After a failure the policy stays due. It is
// logged when it is new, and then every repeatLog.
func (g *Guard) confirm(c change, err error, ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		if c.closed {
			g.told[c.cgroup] = true
		} else {
			delete(g.told, c.cgroup)
		}
		return
	}
	if ctx.Err() != nil {
		return // the proxy ends
	}
	g.failed++
	news := g.problem == "" || time.Since(g.logged) >= repeatLog
	g.problem = err.Error()
	if !news {
		return
	}
	g.logged = time.Now()
	log := g.Log
	if log == nil {
		log = slog.Default()
	}
	if c.closed {
		log.Error("cannot make a cgroup fail closed: connections of a job with displaced keys would bypass the proxy if it exited now; retrying", "cgroup", c.cgroup, "error", err)
	} else {
		log.Warn("cannot reopen a cgroup that fails closed, although none of its jobs needs it; retrying", "cgroup", c.cgroup, "error", err)
	}
}

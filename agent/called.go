package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/policy"
)

// called keeps the names of jobs and what their owners ask for. Jobs are identified by their
// scheduler's address everywhere; a name is only shown.
//
// Several processes may claim a name for a job, and several jobs the same name: policy decides
// which claim counts, and the planner settles names among hosts.
//
// Invariant: titles has exactly the schedulers of jobs.
type called struct {
	allowed policy.Allowed
	pod     func(uid string) (policy.Pod, bool) // nil without a cluster
	// started returns when a process started, in nanoseconds since 1970, and false if it has
	// ended; nil: nothing is known of that.
	started func(pid int) (at int64, ok bool)

	mu     sync.Mutex              // guards the rest
	jobs   map[string]*claimed     // by scheduler; entries are replaced, not changed, apart from running
	titles map[string]policy.Title // by scheduler
	told   map[string]string       // names that the planner has settled, by scheduler
}

// claimed is what the processes of a job on this host claim.
type claimed struct {
	since   int64        // when the first of its processes started, in nanoseconds since 1970
	running bool         // it has processes now
	claim   policy.Claim // the best one, if named
	named   bool         // a process claims a name
	move    string       // see policy.Policy; false if any process says so
	wrong   []string     // complaints about settings, sorted; at most maxWrong
}

// began returns when the first process of each job that is new in seen started: at the latest now.
// An agent that is replaced finds jobs that have run for long.
func (c *called) began(now int64, all []discover.Process, seen map[string]*claimed) map[string]int64 {
	began := map[string]int64{}
	c.mu.Lock()
	for scheduler := range seen {
		if before := c.jobs[scheduler]; before == nil || !before.running {
			began[scheduler] = now
		}
	}
	c.mu.Unlock()
	for i := range all {
		scheduler := all[i].Scheduler.String()
		if earliest, is := began[scheduler]; is && c.started != nil {
			if at, ok := c.started(all[i].PID); ok {
				began[scheduler] = min(earliest, at)
			}
		}
	}
	return began
}

// maxWrong bounds the complaints of a job.
const maxWrong = 16

func newCalled(allowed policy.Allowed, pod func(uid string) (policy.Pod, bool)) *called {
	return &called{allowed: allowed, pod: pod, jobs: map[string]*claimed{}, titles: map[string]policy.Title{}}
}

// wish is what one process and its pod say.
type wish struct {
	tenant string // namespace of the pod, or the user outside pods
	known  bool   // the tenant is certain
	owner  string // top owner of the pod; empty: none, or not resolved yet
	// Of the pod.
	annotations policy.Settings
	policy      policy.Policy
	wrong       []string
}

// wishOf returns what a process says. The process's own variables fill in what its pod's
// annotations leave open. The tenant of a process in a pod is unknown until the API server has
// reported the pod: its user would be no substitute, since pods share users.
func (c *called) wishOf(p *discover.Process) wish {
	w := wish{tenant: policy.User(p.UID), known: p.Owned}
	var pod policy.Pod
	if p.Pod != "" {
		w.known = false
		if c.pod != nil {
			pod, w.known = c.pod(p.Pod)
		}
		w.tenant, w.owner, w.annotations, w.wrong = pod.Namespace, pod.Owner, pod.Settings, pod.Wrong
	}
	own, wrong := p.Settings.Read(c.allowed, policy.Variable)
	w.policy, w.wrong = pod.Policy.Over(own), append(slices.Clip(w.wrong), wrong...)
	return w
}

// leaves reports whether a process has opted out of being watched.
func (c *called) leaves(p *discover.Process) bool {
	return len(p.Settings) > 0 && c.wishOf(p).policy.Observe == "false"
}

// update replaces what is known by what the present processes say; now is in nanoseconds since
// 1970. For a job without processes the last state is kept as long as keep says so, which the
// page needs for a job that is over.
//
// Claims are collected without the lock, since wishOf may call into the pods' lock.
func (c *called) update(now int64, all []discover.Process, keep func(scheduler string) bool) {
	claims := map[string][]policy.Claim{}
	seen := map[string]*claimed{}
	for i := range all {
		p := &all[i]
		if !p.Scheduler.IsValid() || !p.Scheduler.Addr().IsValid() {
			continue
		}
		scheduler := p.Scheduler.String()
		j := seen[scheduler]
		if j == nil {
			j = &claimed{running: true}
			seen[scheduler] = j
		}
		w := c.wishOf(p)
		// One process that says no is enough: moving keys concerns the whole job.
		if w.policy.Move != "" && j.move != "false" {
			j.move = w.policy.Move
		}
		j.wrong = append(j.wrong, w.wrong...)
		// A claim counts only if it is certain whose it is: see titleOf.
		if claim, ok := policy.ClaimOf(w.tenant, w.owner, w.annotations, p.Settings, c.allowed); ok && w.known {
			// The process that listens at the scheduler's address has the last word.
			claim.Role, claim.Authority = p.Role, p.Role == "scheduler" && slices.Contains(p.Listens, p.Scheduler)
			claims[scheduler] = append(claims[scheduler], claim)
		}
	}
	began := c.began(now, all, seen)
	c.mu.Lock()
	defer c.mu.Unlock()
	for scheduler, j := range seen {
		before := c.jobs[scheduler]
		j.since = began[scheduler]
		// A job that stopped and started again under the same address counts as a new one.
		if before != nil && before.running {
			j.since = before.since
		}
		slices.Sort(j.wrong)
		j.wrong = slices.Compact(j.wrong)
		j.wrong = j.wrong[:min(len(j.wrong), maxWrong)]
		j.claim, j.named = policy.Best(claims[scheduler])
		c.jobs[scheduler] = j
	}
	for scheduler, j := range c.jobs {
		if seen[scheduler] != nil {
			continue
		}
		j.running = false
		// The page shows a job that is over as long as the observer has its counts.
		if !keep(scheduler) {
			delete(c.jobs, scheduler)
		}
	}
	c.assign()
}

// assign computes titles. Names that the planner settled take precedence for the current run of
// a name. The caller holds c.mu.
func (c *called) assign() {
	var all []policy.Named
	for scheduler, j := range c.jobs {
		n := policy.Named{Scheduler: scheduler, Since: j.since, Running: j.running}
		if j.named {
			n.Claim = j.claim.Qualified()
		}
		all = append(all, n)
	}
	// Without the planner's answers first, which cover only jobs that it has heard of.
	c.titles = policy.Assign(all)
	used := map[string]bool{}
	for _, scheduler := range slices.Sorted(maps.Keys(c.titles)) {
		t := c.titles[scheduler]
		if !t.Current {
			continue
		}
		if name := c.told[scheduler]; name != "" {
			t.Name = name
		}
		// Two jobs with one name: the planner's answer is older than what this agent sees.
		// Metrics must not have two series with the same labels.
		if used[t.Name] { // two jobs with one name: the planner's answer is older than what this agent sees
			t.Name += "@" + scheduler
		}
		used[t.Name], c.titles[scheduler] = true, t
	}
}

// takeNames records the names that the planner has settled.
func (c *called) takeNames(names map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.told, names) {
		c.told = names
		c.assign()
	}
}

// title returns a job's title; a job without a name is called by its scheduler's address.
func (c *called) title(scheduler string) policy.Title {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok := c.titles[scheduler]; ok {
		return t
	}
	return policy.Title{Name: scheduler, Current: true}
}

// scheduler returns the scheduler address of the current job of a name.
func (c *called) scheduler(name string) (scheduler string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for scheduler, t := range c.titles {
		if t.Current && t.Name == name {
			return scheduler, true
		}
	}
	return "", false
}

// claim returns a copy of what is claimed for a job.
func (c *called) claim(scheduler string) (j claimed, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.jobs[scheduler]; found != nil {
		return *found, true
	}
	return j, false
}

// remarks returns the complaints about a job's settings, and, if another job holds the name
// that it claims, which one.
func (c *called) remarks(scheduler string) []string {
	j, ok := c.claim(scheduler)
	if !ok {
		return nil
	}
	all := slices.Clone(j.wrong)
	if t := c.title(scheduler); t.Holder != "" {
		all = append(all, policy.Taken(t, j.claim))
	}
	return all
}

// titleOf returns the name of a process's job, and the process's own wishes. The name is empty
// unless the process belongs to the tenant whose claim counts: otherwise a tenant could have
// its connections treated as another's job by naming that job's scheduler.
func (c *called) titleOf(p *discover.Process) (name string, wishes policy.Policy) {
	w := c.wishOf(p)
	scheduler := p.Scheduler.String()
	j, ok := c.claim(scheduler)
	if ok && j.named && w.known && w.tenant == j.claim.Tenant {
		name = c.title(scheduler).Name
	}
	return name, w.policy
}

package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/policy"
)

// called knows what jobs are called and what their owners ask for. Jobs are known
// everywhere by their scheduler's address; a name stands beside it.
//
// Invariant: titles has an entry for each of jobs, and no other.
type called struct {
	allowed policy.Allowed
	pod     func(uid string) (policy.Pod, bool) // nil: there is no cluster

	mu     sync.Mutex // guards the rest
	jobs   map[string]*claimed
	titles map[string]policy.Title
	told   map[string]string // names that the planner has settled, by scheduler
}

// claimed is what the processes of a job on this host say of it.
type claimed struct {
	since   int64 // nanoseconds since 1970: when its processes were first seen
	running bool
	claim   policy.Claim // the best
	named   bool         // there is one
	move    string       // as policy.Policy has it; false where one process says so
	wrong   []string     // ascending
}

// maxWrong bounds the complaints that are kept of a job.
const maxWrong = 16

func newCalled(allowed policy.Allowed, pod func(uid string) (policy.Pod, bool)) *called {
	return &called{allowed: allowed, pod: pod, jobs: map[string]*claimed{}, titles: map[string]policy.Title{}}
}

// wish is what one process says, with what its pod does.
type wish struct {
	tenant      string
	known       bool // whose it is
	owner       string
	annotations policy.Settings
	policy      policy.Policy
	wrong       []string
}

// wishOf returns what a process says. The owner of a pod is unknown until the API
// server has reported the pod.
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

// leaves reports whether a process does not want to be watched.
func (c *called) leaves(p *discover.Process) bool {
	return len(p.Settings) > 0 && c.wishOf(p).policy.Observe == "false"
}

// update takes up the processes that there are now, in nanoseconds since 1970. Of a job
// without any what was said last is kept while keep says so.
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
		if w.policy.Move != "" && j.move != "false" {
			j.move = w.policy.Move
		}
		j.wrong = append(j.wrong, w.wrong...)
		if claim, ok := policy.ClaimOf(w.tenant, w.owner, w.annotations, p.Settings, c.allowed); ok && w.known {
			claim.Role, claim.Authority = p.Role, p.Role == "scheduler" && slices.Contains(p.Listens, p.Scheduler)
			claims[scheduler] = append(claims[scheduler], claim)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for scheduler, j := range seen {
		before := c.jobs[scheduler]
		j.since = now
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
		if !keep(scheduler) {
			delete(c.jobs, scheduler)
		}
	}
	c.assign()
}

// assign gives titles again; the caller holds c.mu.
func (c *called) assign() {
	var all []policy.Named
	for scheduler, j := range c.jobs {
		n := policy.Named{Scheduler: scheduler, Since: j.since, Running: j.running}
		if j.named {
			n.Claim = j.claim.Qualified()
		}
		all = append(all, n)
	}
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
		if used[t.Name] { // the planner's answer is older than what this agent sees
			t.Name += "@" + scheduler
		}
		used[t.Name], c.titles[scheduler] = true, t
	}
}

// takeNames takes up what a planner, which knows the jobs of all hosts, has them called.
func (c *called) takeNames(names map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.told, names) {
		c.told = names
		c.assign()
	}
}

// title returns what a job is called: its scheduler's address where it has no name.
func (c *called) title(scheduler string) policy.Title {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok := c.titles[scheduler]; ok {
		return t
	}
	return policy.Title{Name: scheduler, Current: true}
}

// scheduler returns the address of the job that has a name.
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

// claim returns the claim to a job's name and its owner's wishes.
func (c *called) claim(scheduler string) (j claimed, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.jobs[scheduler]; found != nil {
		return *found, true
	}
	return j, false
}

// remarks lists the faults in a job owner's wishes, and which job has the name
// instead.
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

// titleOf returns what a process's job is called, as far as its word counts for that, and
// what the process asks for. A tenant's processes do not get the name of another's job
// by saying that they belong to it.
func (c *called) titleOf(p *discover.Process) (name string, wishes policy.Policy) {
	w := c.wishOf(p)
	scheduler := p.Scheduler.String()
	j, ok := c.claim(scheduler)
	if ok && j.named && w.known && w.tenant == j.claim.Tenant {
		name = c.title(scheduler).Name
	}
	return name, w.policy
}

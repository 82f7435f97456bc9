package fleet

import (
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/planner/api"
)

// claims is what hosts say of one job: the names that its processes claim, and what its owner
// wishes.
type claims struct {
	all  []policy.Claim
	best policy.Claim
	// since is when its processes were first seen, in nanoseconds since 1970; 0 if no host has any
	// now.
	since int64
	// The time of its first message.
	first int64
	// The owner's wish about moves: "true", "false" or "". If processes differ, "false" wins.
	move string
	// Wishes that are not followed, and why.
	wrong []string
}

// claimed returns the claims of all jobs. Whether a job runs is decided by hosts that have reported
// lately; names and wishes by all. It visits every report, so callers that need titles often cache
// them (recentTitles).
func (s *State) claimed() map[string]*claims {
	lately := s.Reports
	if s.Lately != nil {
		lately = s.Lately
	}
	running := map[string]bool{} // hosts
	for _, host := range lately() {
		running[host.GetHost()] = true
	}
	jobs := map[string]*claims{}
	for _, host := range s.Reports() {
		for _, r := range host.GetJobs() {
			c := jobs[r.GetJob()]
			if c == nil {
				c = &claims{first: r.GetFirstUnixNanos()}
				jobs[r.GetJob()] = c
			}
			c.add(r, running[host.GetHost()])
		}
	}
	for _, c := range jobs {
		c.best, _ = policy.Best(c.all)
	}
	return jobs
}

// maxRemarks is how many remarks are kept of a job. Each of a thousand hosts may have some.
const maxRemarks = 16

// add adds what a host says of the job. running is set if the host has reported lately. Invalid
// claims are ignored.
func (c *claims) add(r *api.JobReport, running bool) {
	c.first = min(c.first, r.GetFirstUnixNanos())
	// The job has run since the first of its processes was seen on any host.
	if since := r.GetRunningSinceUnixNanos(); since > 0 && running && (c.since == 0 || since < c.since) {
		c.since = since
	}
	if move := r.GetMove(); move != "" && c.move != "false" {
		c.move = move
	}
	c.wrong = append(c.wrong, r.GetRemarks()...)
	c.wrong = c.wrong[:min(len(c.wrong), maxRemarks)]
	said := r.GetClaim()
	if said == nil {
		return
	}
	claim := policy.Claim{Tenant: said.GetTenant(), Name: said.GetName(), From: policy.ParseSource(said.GetFrom()), Role: said.GetRole(), Authority: said.GetAuthority()}
	// Claims come from users' annotations and environments.
	if claim.Check() == nil {
		c.all = append(c.all, claim)
	}
}

// assign decides what jobs are called (policy.Assign): of several jobs that claim one name, one
// holds it.
func assign(jobs map[string]*claims) map[string]policy.Title {
	var all []policy.Named
	for job, c := range jobs {
		n := policy.Named{Scheduler: job, Since: c.since, Running: c.since > 0}
		// Of jobs that are over only the first message dates them.
		if !n.Running {
			n.Since = c.first
		}
		if c.best.Name != "" {
			n.Claim = c.best.Qualified()
		}
		all = append(all, n)
	}
	return policy.Assign(all)
}

// Titles returns the names of jobs, by scheduler's address. It visits all reports.
func (s *State) Titles() map[string]policy.Title { return assign(s.claimed()) }

// Title returns the name of a job, or its scheduler's address if it has none.
func (s *State) Title(job string) string {
	if t, ok := s.Titles()[job]; ok {
		return t.Name
	}
	return job
}

// Current returns the name of a job; current is set if it is the newest job of that name.
func (s *State) Current(job string) (name string, current bool) {
	t, ok := s.Titles()[job]
	if !ok {
		return job, true
	}
	return t.Name, t.Current
}

// Scheduler implements page.Namer. It returns the address of the newest job of that name, and any
// other text unchanged.
func (s *State) Scheduler(name string) string {
	titles := s.Titles()
	if _, ok := titles[name]; ok {
		return name
	}
	for job, t := range titles {
		if t.Current && t.Name == name {
			return job
		}
	}
	return name
}

// Move returns what the owner of a job wishes about moves of its keys: "true", "false" or "".
func (s *State) Move(job string) string {
	if c := s.claimed()[job]; c != nil {
		return c.move
	}
	return ""
}

// titlesFor is how long titles are reused for answers to reports. Thousands of hosts may report
// within a second, and each answer needs them.
const titlesFor = 500 * time.Millisecond

// recentTitles are the titles as of a moment ago.
type recentTitles struct {
	mu     sync.Mutex // guards the rest
	titles map[string]policy.Title
	at     time.Time
}

// JobNames returns the names of the jobs in a report, for the host that has reported them: agents
// label their metrics with them.
func (s *State) JobNames(r *api.HostReport) []*api.JobName {
	s.recent.mu.Lock()
	// The lock is held while titles are computed: others that wait for it need the same titles.
	if now := time.Now(); now.Sub(s.recent.at) > titlesFor {
		s.recent.titles, s.recent.at = s.Titles(), now
	}
	titles := s.recent.titles
	s.recent.mu.Unlock()
	var names []*api.JobName
	for _, j := range r.GetJobs() {
		// An older job of the same name keeps its address as its name.
		if t, ok := titles[j.GetJob()]; ok && t.Current && t.Name != j.GetJob() {
			names = append(names, &api.JobName{Job: j.GetJob(), Name: t.Name})
		}
	}
	return names
}

// forgets is the remark on a job whose owner asks for moves that this planner cannot make.
const forgets = policy.Prefix + policy.Move + ": this planner forgets where keys are when it ends, so it moves none: start it with --store FILE"

// call sets the names of jobs, where each is from, and the remarks on them.
func (s *State) call(jobs []page.Job) {
	claimed := s.claimed()
	titles := assign(claimed)
	for i := range jobs {
		j := &jobs[i]
		c, t := claimed[j.Name], titles[j.Name]
		if c == nil {
			continue // it was reported a moment ago
		}
		j.Remarks = c.wrong
		// slices.Clip makes append copy: the claims' list is shared.
		if s.Forgetful && c.move == "true" {
			j.Remarks = append(slices.Clip(j.Remarks), forgets)
		}
		if c.best.Name == "" {
			continue
		}
		j.Called, j.CalledFrom = t.Name, c.best.From.String()
		// Another job holds the name that this one claims.
		if t.Holder != "" {
			j.Remarks = append(j.Remarks, policy.Taken(t, c.best))
		}
	}
}

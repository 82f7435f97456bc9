package jobs

import (
	"fmt"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Bounds on jobs and nodes. Node tables come from processes, so their claims must not grow memory
// without end.
const (
	maxJobs         = 256
	maxJobsOfScope  = 64
	maxNodes        = 8192 // of a job
	maxNodesOfScope = 32768
	// forgetOver is the time after which a job that is over here is forgotten, if none of its
	// keys is displaced; otherwise it is forgetAfter: a process of it that comes back must
	// find where its keys are.
	forgetOver = time.Hour
)

// makeRoom makes sure that one more job of a scope, with this table, stays within the bounds. It
// drops jobs that are over, longest first: the scope's own where the scope is at its bound, so that
// it cannot evict those of other tenants, and anybody's where the host is. One whose keys may be
// displaced may go on elsewhere, and its processes come back here: it stays as in forgetEnded. An
// error means that none could be dropped. The caller holds j.mu.
func (j *Jobs) makeRoom(s Scope, t *pslite.Table) error {
	if n := len(t.Nodes()); n > maxNodes {
		return fmt.Errorf("%d nodes, at most %d are possible", n, maxNodes)
	}
	now := time.Now()
	for {
		of, nodes := 0, 0
		var mine, anyones *job // over the longest
		var mineSince, anyonesSince time.Time
		for _, x := range j.jobs {
			since, over := x.overSince()
			over = over && (!x.mayHaveDisplaced() || x.overForLong(now))
			if over && (anyones == nil || since.Before(anyonesSince)) {
				anyones, anyonesSince = x, since
			}
			if !x.scopes[s] {
				continue
			}
			of++
			nodes += len(x.nodes.Nodes())
			if over && (mine == nil || since.Before(mineSince)) {
				mine, mineSince = x, since
			}
		}
		// The loop ends: each turn drops a job or returns.
		victim := mine
		switch {
		case of >= maxJobsOfScope || nodes+len(t.Nodes()) > maxNodesOfScope:
		case len(j.jobs) >= maxJobs:
			victim = anyones
		default:
			return nil
		}
		if victim == nil {
			return fmt.Errorf("%d jobs with %d nodes are in %s, %d on this host: end some, and bring the keys of those that have ended home (psidecar restore) or wait %v", of, nodes, s, len(j.jobs), forgetAfter)
		}
		j.drop(victim)
	}
}

// overSince reports whether a job has no connection here, of any role, and since when.
func (x *job) overSince() (since time.Time, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.unusedSince(time.Now())
}

// unusedSince is overSince for callers that hold x.mu.
func (x *job) unusedSince(now time.Time) (since time.Time, over bool) {
	over = len(x.open) == 0 && x.over(now)
	if x.left.After(x.inUse) {
		return x.left, over && now.Sub(x.left) >= unusedAfter
	}
	return x.inUse, over
}

// adopt notes an open connection of the job.
func (x *job) adopt(w waiter) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// Close removes the connection from all jobs once. One that is adopted after that would stay
	// forever, and keep the job from ever being over.
	if w.open() { // or it would never leave
		x.open[w] = true
	}
}

// forgetEnded drops the jobs that have been over for long.
func (j *Jobs) forgetEnded(now time.Time) {
	for _, x := range j.allJobs() {
		if x.overForLong(now) {
			j.dropEnded(x, now)
		}
	}
}

// dropEnded drops a job that has been over for long. One that was dropped meanwhile is left alone:
// the job in its place may have the same folder. So is one that was taken up again.
func (j *Jobs) dropEnded(x *job, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.jobs[x.key] == x && x.overForLong(now) {
		j.log.Info("dropping an ended job", "job", x.name, "run", x.run)
		j.drop(x)
	}
}

// overForLong reports whether a job has been over for so long that it is forgotten.
func (x *job) overForLong(now time.Time) bool {
	since, over := x.overSince()
	after := forgetOver
	if x.mayHaveDisplaced() {
		after = forgetAfter
	}
	return over && now.Sub(since) >= after
}

// mayHaveDisplaced reports whether keys of the job may be displaced.
func (x *job) mayHaveDisplaced() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.displaced
}

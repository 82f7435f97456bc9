package jobs

import (
	"fmt"
	"time"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// Bounds of what jobs may take, whatever node tables say.
const (
	maxJobs         = 256
	maxJobsOfScope  = 64
	maxNodes        = 8192 // of a job
	maxNodesOfScope = 32768
	// forgetOver is after what time a job that is over here is forgotten, if no
	// key of it is displaced; otherwise forgetAfter is.
	forgetOver = time.Hour
)

// makeRoom forgets jobs that are over so that one more of a scope, with this table,
// stays within the bounds; an error says that none is left to forget. The caller
// holds j.mu.
func (j *Jobs) makeRoom(s Scope, t *pslite.Table) error {
	if n := len(t.Nodes()); n > maxNodes {
		return fmt.Errorf("%d nodes, at most %d are possible", n, maxNodes)
	}
	for {
		of, nodes := 0, 0
		var mine, anyones *job // over the longest
		var mineSince, anyonesSince time.Time
		for _, x := range j.jobs {
			since, over := x.overSince()
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
		victim := mine
		switch {
		case of >= maxJobsOfScope || nodes+len(t.Nodes()) > maxNodesOfScope:
		case len(j.jobs) >= maxJobs:
			victim = anyones
		default:
			return nil
		}
		if victim == nil {
			return fmt.Errorf("%d jobs with %d nodes are under way in %s, %d on this host", of, nodes, s, len(j.jobs))
		}
		j.drop(victim)
	}
}

// overSince reports whether a job has no connections here, of any role, and
// since when.
func (x *job) overSince() (since time.Time, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.unusedSince(time.Now())
}

// unusedSince is overSince while x.mu is locked.
func (x *job) unusedSince(now time.Time) (since time.Time, over bool) {
	over = len(x.open) == 0 && x.over(now)
	if x.left.After(x.inUse) {
		return x.left, over && now.Sub(x.left) >= unusedAfter
	}
	return x.inUse, over
}

// adopt notes an open connection of the job's.
func (x *job) adopt(w waiter) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.open() { // or it would never leave
		x.open[w] = true
	}
}

// forgetEnded forgets jobs that have been over for long.
func (j *Jobs) forgetEnded(now time.Time) {
	for _, x := range j.allJobs() {
		since, over := x.overSince()
		after := forgetOver
		if x.mayHaveDisplaced() {
			after = forgetAfter
		}
		if !over || now.Sub(since) < after {
			continue
		}
		j.mu.Lock()
		j.log.Info("a job that has ended is forgotten", "job", x.name, "run", x.run)
		j.drop(x)
		j.mu.Unlock()
	}
}

func (x *job) mayHaveDisplaced() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.displaced
}

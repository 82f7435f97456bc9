package listeners

import (
	"maps"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy/handover"
)

// titled is where a job is called something: what processes of another cgroup, or
// another network namespace, say of the same scheduler's job counts for them alone.
type titled struct {
	place
	job string
}

// maxTitles bounds the titles sent to proxies; jobs beyond it have none.
const maxTitles = 4096

// wishes are what a process's job is called, and what its owner asks for.
type wishes struct {
	name   string
	policy policy.Policy
}

// group is a cgroup's processes of a job.
type group struct{ cgroup, job string }

// wishesOf joins what processes of one job in one cgroup say; of what they say
// differently the first one's counts.
func wishesOf(all []Process) map[group]wishes {
	joined := map[group]wishes{}
	for _, p := range all {
		if p.Job == "" {
			continue
		}
		g := group{p.Cgroup, p.Job}
		w := joined[g]
		if w.name == "" {
			w.name = p.Called
		}
		w.policy = w.policy.Over(p.Wishes)
		joined[g] = w
	}
	return joined
}

// title sends the proxies a job's title in a place, unless they have it. It comes
// before the job's listeners, so that no connection is accepted without its rules.
// The caller holds l.mu.
func (l *Listeners) title(at titled, w wishes) {
	t := handover.Title{Cgroup: uint64(at.group), Netns: at.netns, Job: at.job, Name: w.name, Wishes: w.policy}
	before, told := l.titles[at]
	if t == before || w == (wishes{}) && !told || !told && len(l.titles) >= maxTitles {
		return
	}
	if w == (wishes{}) {
		delete(l.titles, at)
	} else {
		l.titles[at] = t
	}
	l.sendToAll(t.Message(), nil)
}

// dropTitles withdraws the titles of places and jobs that are gone; the caller
// holds l.mu.
func (l *Listeners) dropTitles(there map[titled]bool) {
	for at := range l.titles {
		if !there[at] {
			l.title(at, wishes{})
		}
	}
}

// tellTitles tells a proxy that has come all of them; the caller holds l.mu.
func (l *Listeners) tellTitles(conn *handover.Conn) error {
	all := slices.SortedFunc(maps.Values(l.titles), func(a, b handover.Title) int { return strings.Compare(a.Job, b.Job) })
	for _, t := range all {
		if err := conn.Send(t.Message(), nil); err != nil {
			return err
		}
	}
	return nil
}

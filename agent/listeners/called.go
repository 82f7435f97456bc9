package listeners

import (
	"maps"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/policy"
)

// titled is the key of a title: a job's name and wishes hold for one place only. Two tenants
// may run jobs whose schedulers have the same address in different network namespaces, so what
// the processes of one cgroup say never applies to another's.
type titled struct {
	place
	job string
}

// maxTitles bounds Listeners.titles, maxTitlesOfPlace those of one place, which any process of its
// cgroup can use up. A job beyond a bound is served without a name or wishes.
const maxTitles, maxTitlesOfPlace = 4096, 64

// wishes are a job's name and the measures that its owner asks for, as far as the processes of
// one cgroup say.
type wishes struct {
	name   string
	policy policy.Policy
}

// group is the key under which wishes are joined: the processes of one job in one cgroup.
type group struct{ cgroup, job string }

// wishesOf joins the wishes of all processes of a job in a cgroup. Where two of them disagree,
// the first in the list wins, for each setting by itself. Processes that do not know their job
// yet are skipped.
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

// title sends the proxies a job's title, unless they already have the same one; empty wishes
// withdraw it. Callers send the title before they hand out the job's listeners: a proxy may
// accept a connection as soon as it has the listener, and must know the job's rules by then.
// The caller holds l.mu.
func (l *Listeners) title(at titled, w wishes) {
	t := handover.Title{Cgroup: uint64(at.group), Netns: at.netns, Job: at.job, Name: w.name, Wishes: w.policy}
	before, told := l.titles[at]
	if t == before || w == (wishes{}) && !told || !told && !l.hasTitleRoom(at.place) {
		return
	}
	if w == (wishes{}) {
		delete(l.titles, at)
	} else {
		l.titles[at] = t
	}
	l.sendToAll(t.Message(), nil)
}

// hasTitleRoom reports whether a place may have one more title. The caller holds l.mu.
func (l *Listeners) hasTitleRoom(at place) bool {
	n := 0
	for other := range l.titles {
		if other.place == at {
			n++
		}
	}
	return n < maxTitlesOfPlace && len(l.titles) < maxTitles
}

// dropTitles withdraws every title whose place or job is not in there. The caller holds l.mu.
func (l *Listeners) dropTitles(there map[titled]bool) {
	for at := range l.titles {
		if !there[at] {
			l.title(at, wishes{})
		}
	}
}

// tellTitles sends a new proxy all titles, ordered by job so that a recorded exchange is
// reproducible. The caller holds l.mu.
func (l *Listeners) tellTitles(conn *handover.Conn) error {
	all := slices.SortedFunc(maps.Values(l.titles), func(a, b handover.Title) int { return strings.Compare(a.Job, b.Job) })
	for _, t := range all {
		if err := conn.Send(t.Message(), nil); err != nil {
			return err
		}
	}
	return nil
}

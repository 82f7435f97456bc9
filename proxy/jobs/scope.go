package jobs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Scope is a set of processes on this host that may speak for one another: those in a cgroup whose
// connects the agent has redirected, or below it, in one network namespace; in Kubernetes, a
// container's or a pod's. What processes of one scope claim changes nothing for those of another.
// The zero Scope has the processes that the agent does not identify: those of explicit listeners,
// and of ports that an administrator names.
type Scope struct {
	Cgroup uint64 `json:"cgroup"` // id of the cgroup
	Netns  uint64 `json:"netns"`  // inode of the network namespace
}

// Known reports whether the agent has identified the scope.
func (s Scope) Known() bool { return s != Scope{} }

// compare orders scopes, so that files that list them do not depend on map order.
func (s Scope) compare(o Scope) int {
	return cmp.Or(cmp.Compare(s.Netns, o.Netns), cmp.Compare(s.Cgroup, o.Cgroup))
}

func (s Scope) String() string {
	if !s.Known() {
		return "unknown"
	}
	return fmt.Sprintf("cgroup %d netns %d", s.Cgroup, s.Netns)
}

// Peer is the proxy at the other end of a link.
type Peer interface {
	// At returns nil if it is the proxy that answers at the mesh port of a host, or was a moment
	// ago. It may ask there, and so block until ctx ends. An error means that it is another one, or
	// that nobody answers.
	At(ctx context.Context, host netip.Addr) error
}

// Bounds on the scopes and destinations that are remembered; the ones used the longest ago give
// way.
const (
	maxScopes  = 1024
	maxDialled = 1024 // destinations of a scope
)

// dialled has the destinations to which processes of a scope have connected, with the times of the
// last connection; at most maxDialled.
type dialled struct {
	to   map[netip.AddrPort]time.Time
	last time.Time
}

// noteDialled notes that a process of a scope connects to a destination.
func (j *Jobs) noteDialled(s Scope, to netip.AddrPort) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	d := j.dialled[s]
	if d == nil {
		if len(j.dialled) >= maxScopes {
			delete(j.dialled, oldest(j.dialled, func(d *dialled) time.Time { return d.last }))
		}
		d = &dialled{to: map[netip.AddrPort]time.Time{}}
		j.dialled[s] = d
	}
	if _, ok := d.to[to]; !ok && len(d.to) >= maxDialled {
		delete(d.to, oldest(d.to, func(t time.Time) time.Time { return t }))
	}
	d.to[to], d.last = now, now
}

// Names notes that processes of a scope have their scheduler at that address (host:port), as the
// agent has found out from their environment. Anything that is no address is ignored.
func (j *Jobs) Names(s Scope, scheduler string) {
	if at, err := netip.ParseAddrPort(scheduler); err == nil {
		j.noteDialled(s, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	}
}

// oldest returns the key of the element with the earliest time; m must not be empty.
func oldest[K comparable, V any](m map[K]V, when func(V) time.Time) K {
	return slices.MinFunc(slices.Collect(maps.Keys(m)), func(a, b K) int { return when(m[a]).Compare(when(m[b])) })
}

// scheduler returns the address at which processes of a scope have dialled the scheduler of a node
// table. For the unknown scope, any scope's dialling counts.
func (j *Jobs) scheduler(t *pslite.Table, s Scope) (at netip.AddrPort, ok bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for scope, d := range j.dialled {
		if scope != s && s.Known() {
			continue
		}
		for to := range d.to {
			if id, ok := t.At(to); ok && id == pslite.SchedulerID {
				return to, true
			}
		}
	}
	return at, false
}

// hasScope reports whether processes of a scope take part in the job; the caller holds jobs.mu. An
// unknown scope, of the process or of the job, separates nothing.
func (x *job) hasScope(s Scope) bool { return !s.Known() || x.scopes[s] || x.scopes[Scope{}] }

// sharing returns another job of the same name in which processes of one of x's scopes take part,
// or nil; the caller holds j.mu, or is the only one to know j.
func (j *Jobs) sharing(x *job) *job {
	for _, other := range j.jobs {
		if other == x || other.name != x.name {
			continue
		}
		for s := range x.scopes {
			if other.scopes[s] {
				return other
			}
		}
	}
	return nil
}

// near reports whether the job has processes in the scope's network namespace; the caller holds
// jobs.mu.
func (x *job) near(s Scope) bool {
	for mine := range x.scopes {
		if mine.Netns == s.Netns {
			return true
		}
	}
	return false
}

// joinScopes adds scopes to the job, the unknown one where there are none; the caller holds
// jobs.mu.
func (x *job) joinScopes(all []Scope) {
	if len(all) == 0 {
		all = []Scope{{}} // kept by an older version
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range all {
		if !x.scopes[s] {
			x.scopes[s], x.unsaved = true, true
		}
	}
}

package listeners

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/handover"
)

// setSpares records whether connections may do without a proxy, and steers connects
// accordingly.
func (l *Listeners) setSpares(conn *handover.Conn, on bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.proxies[conn]; !there || l.closed {
		return nil
	}
	l.spares[conn] = on
	return l.reconcile()
}

// spare sets whether a group's connects go direct unless their link is slow: all proxies have to
// agree, and may says whether the owners of its jobs do. While there is no proxy it stays as it
// is, so that connects that go direct do not wait for the next one. The caller holds l.mu.
func (l *Listeners) spare(id redirect.GroupID, may bool) error {
	for _, spares := range l.spares {
		may = may && spares
	}
	if set, known := l.spared[id]; len(l.proxies) == 0 || known && set == may {
		return nil
	}
	groups, err := l.opts.Redirect.Groups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.ID == id {
			l.bypassed[id] = l.bypassed[id] || may || g.Policy.Spare
			g.Policy.Spare = may
			err = errors.Join(err, l.opts.Redirect.SetPolicy(id, g.Policy))
		}
	}
	if err == nil {
		l.spared[id] = may
	}
	return err
}

// groupAbove returns the group of a cgroup, which may lie below it. The caller holds l.mu.
func (l *Listeners) groupAbove(cgroup string) (redirect.GroupID, bool) {
	for path, id := range l.groups {
		// With a slash at the end of both, so that /job1 is not taken for a part of /job.
		if strings.HasPrefix(cgroup+"/", strings.TrimSuffix(path, "/")+"/") {
			return id, true
		}
	}
	return 0, false
}

// Spares reports whether connects of a cgroup go direct, except to where Take has them go to the
// proxy, and whether that was so at some time.
func (l *Listeners) Spares(cgroup string) (now, once bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.groupAbove(cgroup)
	return ok && l.spared[id], ok && l.bypassed[id]
}

// Take has connects of a cgroup to a destination go to the proxy, and Hold direct again: after a
// time in which they fail, or until Hold is called without one.
func (l *Listeners) Take(cgroup string, to netip.AddrPort) error {
	return l.direct(cgroup, func(id redirect.GroupID) error { return l.opts.Redirect.Take(id, to) })
}

// Hold undoes Take.
func (l *Listeners) Hold(cgroup string, to netip.AddrPort, within time.Duration) error {
	return l.direct(cgroup, func(id redirect.GroupID) error { return l.opts.Redirect.Hold(id, to, within) })
}

// direct calls f with a cgroup's group, if it has one.
func (l *Listeners) direct(cgroup string, f func(redirect.GroupID) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.groupAbove(cgroup); ok && !l.closed {
		return f(id)
	}
	return nil
}

// unneeded are the connections that gain nothing by the proxy, by what proxies say.
type unneeded struct {
	mu  sync.Mutex // guards all
	all map[handover.Source]bool
}

// mostUnneeded bounds unneeded.all. Proxies name what does not fit again.
const mostUnneeded = 1 << 14

// noteUnneeded notes one of them.
func (l *Listeners) noteUnneeded(s handover.Source) {
	l.unneeded.mu.Lock()
	defer l.unneeded.mu.Unlock()
	if l.unneeded.all == nil {
		l.unneeded.all = map[handover.Source]bool{}
	}
	if len(l.unneeded.all) < mostUnneeded {
		l.unneeded.all[s] = true
	}
}

// Unneeded returns them, and forgets them.
func (l *Listeners) Unneeded() map[handover.Source]bool {
	l.unneeded.mu.Lock()
	defer l.unneeded.mu.Unlock()
	all := l.unneeded.all
	l.unneeded.all = nil
	return all
}

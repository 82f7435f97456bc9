package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/reason"
)

// ErrUntold is what an agent's word is that knows nothing of owners: it is of an
// older version, or its kernel does not tell. Links may have every port then.
var ErrUntold = errors.New("the agent does not tell which ports are those of jobs")

// A PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// Reach says which ports of this host links may ask for: those at which a
// process of a job listens, and those named here.
type Reach struct {
	// Owner returns the cgroup, among those whose connects the agent has
	// redirected, one of whose processes listens at an address of the network
	// namespace with that inode, 0 where none does; found where anybody does.
	// nil: there is no agent.
	Owner func(ctx context.Context, netns uint64, at netip.AddrPort) (cgroup uint64, found bool, err error)
	// Ports may be asked for whoever listens there.
	Ports []PortRange
}

const (
	// askWithin is how long a link waits for an agent that has to say whether
	// its destination is a job's: one may be about to be replaced.
	askWithin = 3 * time.Second
	askAgain  = 50 * time.Millisecond
	// maxOwners bounds how many answers of the agent are kept for while there
	// is none, and rememberOwner for how long.
	maxOwners     = 4096
	rememberOwner = 10 * time.Minute
)

// reach judges destinations on this host.
type reach struct {
	Reach
	home uint64 // inode of this process's network namespace

	mu     sync.Mutex      // guards owners
	owners map[place]owner // what the agent said last; at most maxOwners
}

// place is an address in a network namespace.
type place struct {
	netns uint64
	at    netip.AddrPort
}

// owner is a cached answer of the agent: the cgroup that listens at a place.
type owner struct {
	cgroup uint64
	asked  time.Time
}

func newReach(r Reach) *reach {
	n := &reach{Reach: r, owners: map[place]owner{}}
	if info, err := os.Stat("/proc/self/ns/net"); err == nil {
		n.home = info.Sys().(*syscall.Stat_t).Ino
	}
	return n
}

func (r *reach) named(port uint16) bool {
	for _, p := range r.Ports {
		if p.First <= port && port <= p.Last {
			return true
		}
	}
	return false
}

// scope returns the scope of the process that listens at an address of this
// host; the error says why a link may not have it.
func (r *reach) scope(ctx context.Context, netns uint64, at netip.AddrPort) (jobs.Scope, error) {
	if netns == 0 {
		netns = r.home
	}
	named := r.named(at.Port())
	if r.Owner == nil {
		if named {
			return jobs.Scope{}, nil
		}
		return jobs.Scope{}, reason.Errorf(reason.ForeignPort, "%s: no agent tells which ports are those of jobs (name them with --mesh-ports)", at)
	}
	p := place{netns, at}
	cgroup, found, err := r.ask(ctx, p, named)
	switch {
	case errors.Is(err, ErrUntold), err != nil && named:
		return jobs.Scope{}, nil
	case err != nil:
		return jobs.Scope{}, reason.Errorf(reason.ForeignPort, "%s: whether it is a job's is not known: %w", at, err)
	case !found:
		return jobs.Scope{}, reason.Errorf(reason.Unreachable, "nobody listens at %s", at)
	case cgroup != 0:
		r.remember(p, cgroup)
		return jobs.Scope{Cgroup: cgroup, Netns: netns}, nil
	case named:
		return jobs.Scope{}, nil
	}
	return jobs.Scope{}, reason.Errorf(reason.ForeignPort, "%s: who listens there is no process of a job that the agent serves (--mesh-ports lets other hosts' proxies reach it)", at)
}

// ask asks the agent; while there is none, what it said before counts, and
// otherwise it is waited for unless its answer is not needed.
func (r *reach) ask(ctx context.Context, p place, named bool) (cgroup uint64, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	for {
		if cgroup, found, err = r.Owner(ctx, p.netns, p.at); err == nil {
			return cgroup, found, nil
		}
		if cgroup = r.remembered(p); cgroup != 0 {
			return cgroup, true, nil
		}
		if named || errors.Is(err, ErrUntold) {
			return 0, false, err
		}
		select {
		case <-ctx.Done():
			return 0, false, fmt.Errorf("%w (waited for %v)", err, askWithin)
		case <-time.After(askAgain):
		}
	}
}

func (r *reach) remembered(p place) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.owners[p]; time.Since(o.asked) < rememberOwner {
		return o.cgroup
	}
	return 0
}

func (r *reach) remember(p place, cgroup uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.owners[p]; !ok && len(r.owners) >= maxOwners {
		clear(r.owners) // they are asked for again
	}
	r.owners[p] = owner{cgroup, time.Now()}
}

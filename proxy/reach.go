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

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/proxy/jobs"
)

// ErrUntold is the answer of an agent that cannot tell owners of sockets: it is of an older
// version, or its kernel does not tell. Then links may reach every port.
var ErrUntold = errors.New("the agent does not report the jobs' ports")

// PortRange is the ports from First to Last, both included.
type PortRange struct{ First, Last uint16 }

// Reach determines which ports of this host links may ask for: those at which a process of a
// job listens, and those named here. Otherwise every proxy of the mesh could reach every
// service that listens on this host.
type Reach struct {
	// Owner returns the cgroup, among those whose connects the agent has redirected, of the
	// process that listens at an address of the network namespace with that inode; 0 where it
	// is in none. found reports whether any process listens there. nil: there is no agent.
	Owner func(ctx context.Context, netns uint64, at netip.AddrPort) (cgroup uint64, found bool, err error)
	// Ports may be asked for whoever listens there.
	Ports []PortRange
}

const (
	// askWithin is how long a link waits for an agent to answer whether its destination is a
	// job's. The agent may be being replaced.
	askWithin = 3 * time.Second
	askAgain  = 50 * time.Millisecond
	// maxOwners bounds the answers that are kept for times without an agent, and
	// rememberOwner is how long they count.
	maxOwners     = 4096
	rememberOwner = 10 * time.Minute
)

// reach judges destinations on this host, and remembers the agent's answers. An agent may be
// replaced at any time, and links must go on meanwhile; what it said last is a better answer
// than none.
type reach struct {
	Reach
	home uint64 // inode of this process's network namespace

	mu     sync.Mutex      // guards owners
	owners map[place]owner // the agent's last answers; at most maxOwners
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

// newReach returns a reach that has asked nothing yet.
func newReach(r Reach) *reach {
	n := &reach{Reach: r, owners: map[place]owner{}}
	if info, err := os.Stat("/proc/self/ns/net"); err == nil {
		n.home = info.Sys().(*syscall.Stat_t).Ino
	}
	return n
}

// named reports whether a port was named by the administrator.
func (r *reach) named(port uint16) bool {
	for _, p := range r.Ports {
		if p.First <= port && port <= p.Last {
			return true
		}
	}
	return false
}

// scope returns the scope of the process that listens at an address of this host, or an error
// that says why a link may not reach it. It blocks for up to askWithin.
func (r *reach) scope(ctx context.Context, netns uint64, at netip.AddrPort) (jobs.Scope, error) {
	// The agent knows namespaces by inode only.
	if netns == 0 {
		netns = r.home
	}
	named := r.named(at.Port())
	if r.Owner == nil {
		if named {
			return jobs.Scope{}, nil
		}
		return jobs.Scope{}, reason.Errorf(reason.ForeignPort, "%s: no agent reports the jobs' ports (set them with --mesh-ports)", at)
	}
	p := place{netns, at}
	cgroup, found, err := r.ask(ctx, p, named)
	switch {
	// The rule cannot be enforced with such an agent, and must not break what worked before
	// it.
	case errors.Is(err, ErrUntold), err != nil && named:
		return jobs.Scope{}, nil
	case err != nil:
		return jobs.Scope{}, reason.Errorf(reason.ForeignPort, "%s: whether it is a job's is not known: %w", at, err)
	case !found:
		return jobs.Scope{}, reason.Errorf(reason.Unreachable, "no listener at %s", at)
	case cgroup != 0:
		r.remember(p, cgroup)
		return jobs.Scope{Cgroup: cgroup, Netns: netns}, nil
	case named:
		return jobs.Scope{}, nil
	}
	return jobs.Scope{}, reason.Errorf(reason.ForeignPort, "%s: the listener is not a process of an intercepted job (use --mesh-ports to let proxies on other hosts reach it)", at)
}

// ask asks the agent. While there is none, an earlier answer counts; without one it waits for
// the agent, unless the port is named.
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

// remembered returns the cgroup of an earlier answer, 0 where there is none.
func (r *reach) remembered(p place) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.owners[p]; time.Since(o.asked) < rememberOwner {
		return o.cgroup
	}
	return 0
}

// remember keeps an answer of the agent.
func (r *reach) remember(p place, cgroup uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.owners[p]; !ok && len(r.owners) >= maxOwners {
		clear(r.owners) // they are asked for again
	}
	r.owners[p] = owner{cgroup, time.Now()}
}

package daemon

import (
	"context"
	"net/netip"
	"path/filepath"
	"sync/atomic"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/listeners"
)

// adoption has connections adopted that an agent sees go past the proxy.
type adoption struct {
	listeners *listeners.Listeners
	port      uint16 // of the mesh
	adopter   *Adopter
	directs   func() []DirectConnection         // set before adopter runs
	found     atomic.Pointer[discover.Snapshot] // the latest
	root      string                            // mount of cgroup v2
}

// tellAgent has the agent show what comes of it.
func (a *adoption) tellAgent(o *agent.Options) {
	a.root = o.CgroupRoot
	a.adopter = NewAdopter(AdopterOptions{
		Proc: o.Proc, MeshPort: a.port, Owner: a.owner, Takes: a.listeners.Takes,
		Directs: func() []DirectConnection { return a.directs() },
	})
	o.Adoption = a.adopter.State
	o.Collectors = append(o.Collectors, a.adopter)
}

func (a *adoption) run(ctx context.Context, of *agent.Agent) {
	a.directs = func() (all []DirectConnection) {
		for _, d := range of.Directs() {
			all = append(all, DirectConnection(d))
		}
		return all
	}
	a.adopter.Run(ctx)
}

// owner is whose a connection is, as was found last.
func (a *adoption) owner(local, peer netip.AddrPort) (pid int, cgroup string, ok bool) {
	s := a.found.Load()
	if s == nil {
		return 0, "", false
	}
	p, ok := s.Owner(local, peer)
	if !ok {
		return 0, "", false
	}
	return p.PID, filepath.Join(a.root, p.Cgroup), true
}

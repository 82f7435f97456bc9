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

// adoption connects an Adopter with the agent: it supplies the connections that the agent sees,
// their processes, and which cgroups a proxy serves.
type adoption struct {
	listeners *listeners.Listeners
	port      uint16 // the mesh port
	adopter   *Adopter
	late      bool                              // connections that bypass the proxy by chance are adopted too
	sendings  func() []Connection               // set before the adopter runs
	found     atomic.Pointer[discover.Snapshot] // the latest snapshot
	root      string                            // mount point of cgroup v2
}

// tellAgent creates the adopter and has the agent show its state and metrics. It is called
// before the agent exists, so sendings is set later.
func (a *adoption) tellAgent(o *agent.Options) {
	a.root = o.CgroupRoot
	a.adopter = NewAdopter(AdopterOptions{
		Proc: o.Proc, MeshPort: a.port, Owner: a.owner, Late: a.late, Proxy: a.listeners,
		Connections: func() []Connection { return a.sendings() },
	})
	o.Adoption = a.adopter.State
	o.Collectors = append(o.Collectors, a.adopter)
}

// run adopts connections that the agent sees until ctx ends.
func (a *adoption) run(ctx context.Context, of *agent.Agent) {
	a.sendings = func() (all []Connection) {
		for _, s := range of.Sendings() {
			all = append(all, Connection(s))
		}
		return all
	}
	a.adopter.Run(ctx)
}

// owner returns the process of a connection and the folder of its cgroup, as of the latest
// snapshot.
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

package agent

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/agent/observe"
)

// namesKept is how long names are cached.
const namesKept = time.Second

// SlowNames resolves the names of jobs and nodes for slow requests. It caches the views of
// jobs, since a view costs time in proportion to the job. It must be used by one goroutine.
type SlowNames struct {
	agent *Agent
	since time.Time
	jobs  map[netip.AddrPort]observe.JobView
}

// NewSlowNames returns an empty cache.
func (a *Agent) NewSlowNames() *SlowNames { return &SlowNames{agent: a} }

// Of returns the names of a request's job, run, worker and server; empty if unknown.
func (n *SlowNames) Of(scheduler netip.AddrPort, worker, server int) (job, run, from, to string) {
	if now := time.Now(); n.jobs == nil || now.Sub(n.since) > namesKept {
		n.since, n.jobs = now, map[netip.AddrPort]observe.JobView{}
	}
	v, known := n.jobs[scheduler]
	if !known {
		if v, known = n.agent.observer.Job(scheduler.String()); known {
			n.jobs[scheduler] = v
		}
	}
	if v.Table != 0 {
		run = strconv.FormatUint(v.Table, 16)
	}
	return n.agent.called.title(scheduler.String()).Name, run, at(v.WorkersByIndex, worker), at(v.ServersByIndex, server)
}

func at(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return ""
}

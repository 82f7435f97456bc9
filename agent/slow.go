package agent

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/agent/observe"
)

// namesKept is how long names of a job's nodes are taken to be those of before.
const namesKept = time.Second

// SlowNames says what jobs and nodes of slow requests are called. It is used by one
// goroutine. It keeps what it has asked the agent for, of those jobs that the agent
// follows, for a second.
type SlowNames struct {
	agent *Agent
	since time.Time
	jobs  map[netip.AddrPort]observe.JobView
}

// NewSlowNames returns one that knows nothing yet.
func (a *Agent) NewSlowNames() *SlowNames { return &SlowNames{agent: a} }

// Of returns the names of a request's job, run, worker and server; empty where they are
// not known.
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

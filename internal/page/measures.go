package page

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/api/measure"
)

// Observed returns the line about how a job is watched.
func Observed(j *Job) measure.Line {
	l := measure.Line{Job: j.Name, Measure: measure.Observe, On: j.Connections.Synced, Connections: j.Connections.Synced + j.Connections.Unsynced}
	if s := j.Sampling; s != nil && s.OneIn > 1 {
		l.Setting = fmt.Sprintf("keys of one in %d requests", s.OneIn)
	}
	if n := j.Connections.Unsynced; n > 0 {
		l.Lack(measure.Gap{Reason: "unsynced", Connections: n, Why: "older than the agent, without a recognizable message since", Do: "they are synchronized at their next messages"})
	}
	if l.Connections == 0 {
		l.Lack(measure.Gap{Reason: "no_connections", Why: "no connection of the job has been seen", Do: "run psidecar doctor; only TCP can be watched (no DMLC_LOCAL=1, no RDMA)"})
	}
	l.Judge()
	return l
}

// This file bounds what a report says of a host and its jobs, beside the memory that the report
// itself takes: what is shown is computed from lists of different hosts together.

package planner

import (
	"fmt"

	"github.com/psidecar/psidecar/planner/api"
)

// Bounds on the lists of a job in a report; there is a distribution for each latency.
const (
	maxUses      = maxMembers
	maxLatencies = 4096
	maxHottest   = 1 << 14
	maxTraffic   = 1 << 18
	// maxSteps is how many steps a worker may have made, so that what it uses in a step, times
	// those, stays finite.
	maxSteps = 1 << 40
	// maxFigure bounds figures with a fraction, so that sums over hosts stay finite.
	maxFigure = 1e15
)

// checkLists returns the first list of a job's report that is too long, or a worker with too many
// steps.
func checkLists(j *api.JobReport) error {
	for _, l := range []struct {
		n, most int
		of      string
	}{
		{len(j.GetUses()), maxUses, "uses"}, {len(j.GetByWorker()), maxLatencies, "latencies of workers"},
		{len(j.GetByServer()), maxLatencies, "latencies of servers"}, {len(j.GetHottest()), maxHottest, "hottest keys"},
		{len(j.GetTraffic()), maxTraffic, "pairs with traffic"},
	} {
		if l.n > l.most {
			return fmt.Errorf("%d %s, at most %d are taken", l.n, l.of, l.most)
		}
	}
	for _, s := range j.GetSteps() {
		if s.GetSteps() > maxSteps || s.GetRecent() > maxSteps {
			return fmt.Errorf("%d steps, %d of them recent", s.GetSteps(), s.GetRecent())
		}
	}
	return nil
}

// clearFigures sets figures of a report to 0 that are negative, too large or no numbers. JSON has no
// form for the latter: those of one host would keep all others from being shown.
func clearFigures(r *api.HostReport) {
	var all []*float64
	if a := r.GetAgent(); a != nil {
		all = append(all, &a.CpuPercent, &a.KernelPercent, &a.CpuSeconds, &a.ProcessSeconds, &a.KernelSeconds)
	}
	for _, j := range r.GetJobs() {
		if k := j.GetSketch(); k != nil {
			all = append(all, &k.Percent)
		}
	}
	for _, figure := range all {
		if !(*figure >= 0 && *figure <= maxFigure) {
			*figure = 0
		}
	}
}

package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// goesOn sets the state of a job: whether it makes progress, and if not since when and because of
// whom. Each host knows what its own workers do and for whom they wait.
//
// The states have an order: a job runs if any host says so, since a host whose workers wait may
// only wait for those; it is over only if no host says that it runs or stalls; and a host without
// workers says that it starts, which counts only if no host knows better.
func goesOn(j *page.Job, reports []*api.JobReport, now time.Time) {
	states := map[string]int{}
	j.Stalls = []page.Stall{}
	for _, r := range reports {
		// An agent of an older version reports no state.
		if r.GetState() == "" {
			continue
		}
		states[r.GetState()]++
		for _, s := range r.GetStalls() {
			since := time.Unix(0, s.GetSinceUnixNanos())
			j.Stalls = append(j.Stalls, page.Stall{
				Kind: s.GetKind(), Who: s.GetWho(), On: s.GetOn(), Since: since, Seconds: now.Sub(since).Seconds(),
				Keys: s.GetKeys(), Bytes: s.GetBytes(), Why: s.GetWhy(), Text: s.GetText(),
			})
		}
	}
	slices.SortStableFunc(j.Stalls, func(a, b page.Stall) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Who, b.Who)) })
	// A host without workers has only seen servers answer, and says that it starts.
	switch {
	case states[page.Running] > 0:
		j.State = page.Running
	case states[page.Stalled] > 0:
		j.State = page.Stalled
	case states[page.Over] > 0:
		j.State = page.Over
	case states[page.Starting] > 0:
		j.State = page.Starting
	}
	// The figures were of its last moments.
	if j.State == page.Over {
		j.StepsPerSecond, j.BytesPerSecond, j.Stragglers, j.Stalls = 0, 0, []string{}, []page.Stall{}
	}
	j.Cause, j.What = causeOf(j, reports)
	for _, r := range reports {
		// The job has stood still only since the last of its hosts has.
		if at := time.Unix(0, r.GetSinceUnixNanos()); r.GetSinceUnixNanos() > 0 && j.State == page.Stalled && at.After(j.Since) {
			j.Since = at
		}
	}
}

// causeOf returns the node because of which the job stands still, and that in a sentence: the cause
// named by hosts on which most nodes wait. A node that is silent comes before all nodes that others
// wait for, because those usually wait for it in turn.
func causeOf(j *page.Job, reports []*api.JobReport) (cause, what string) {
	most := -1
	for _, r := range reports {
		// What ended on one host is no reason why the rest stands still.
		if r.GetWhat() == "" || r.GetState() == page.Over && j.State != page.Over {
			continue
		}
		// Causes compete by how many stalls they explain.
		weight := 0
		if r.GetCause() != "" {
			weight++
		}
		for _, s := range j.Stalls {
			switch {
			case s.On != "" && s.On == r.GetCause():
				weight++
			case s.Kind == page.Silent && s.Who == r.GetCause():
				weight += len(j.Stalls)
			}
		}
		if weight > most {
			most, cause, what = weight, r.GetCause(), r.GetWhat()
		}
	}
	return cause, what
}

package fleet

import (
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// Names returns the names of the jobs that hosts report, by scheduler's address.
func (s *State) Names() map[string]string {
	names := map[string]string{}
	for job, t := range s.Titles() {
		names[job] = t.Name
	}
	return names
}

// measure sets the lines on measures of each job: those of the proxies, summed over hosts, and that
// its messages are counted. Lines of no known job belong to the only running one, if there is only
// one. A job that is over has no lines, since nothing holds for it any more.
func (s *State) measure(jobs []page.Job) {
	var hosts [][]measure.Line
	if s.Measures != nil {
		hosts = s.Measures()
	}
	// Jobs that are over have no connections, so they cannot be the one that an unnamed line is of.
	running := 0
	for i := range jobs {
		if jobs[i].State != page.Over {
			running++
		}
	}
	for i := range jobs {
		j := &jobs[i]
		j.Measures = []measure.Line{}
		if j.State == page.Over {
			continue
		}
		// How a job is watched is known from agents; all other lines come from proxies.
		all := [][]measure.Line{{page.Observed(j)}}
		for _, lines := range hosts {
			all = append(all, measure.Of(lines, j.Name, running == 1))
		}
		j.Measures = measure.Sum(all...)
	}
}

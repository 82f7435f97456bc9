package fleet

import (
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// Names returns the jobs that hosts report.
func (s *State) Names() []string {
	var names []string
	for _, host := range s.Reports() {
		for _, j := range host.GetJobs() {
			names = append(names, j.GetJob())
		}
	}
	return names
}

// measure gives jobs the lines on their measures: what proxies say, summed over
// hosts, and that their messages are counted.
func (s *State) measure(jobs []page.Job) {
	var hosts [][]measure.Line
	if s.Measures != nil {
		hosts = s.Measures()
	}
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
		all := [][]measure.Line{{page.Observed(j)}}
		for _, lines := range hosts {
			all = append(all, measure.Of(lines, j.Name, running == 1))
		}
		j.Measures = measure.Sum(all...)
	}
}

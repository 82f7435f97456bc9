package planner

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
)

// reported returns the names of the jobs that hosts report, by scheduler's address. It is called
// without s.mu, which the callback must not be called under.
func (s *Codecs) reported() map[string]string {
	if s.Jobs == nil {
		return nil
	}
	return s.Jobs()
}

// known returns the names of all known jobs, sorted: those that hosts report, and those of which
// following proxies carry connections. The job that was asked for by its scheduler's address is
// listed under that too. The caller holds s.mu.
func (s *Codecs) known(reported map[string]string, asked string) []string {
	var jobs []string
	add := func(job string) {
		name, named := reported[job]
		if !named {
			name = job
		}
		if jobs = append(jobs, name); job == asked {
			jobs = append(jobs, job)
		}
	}
	for job := range reported {
		add(job)
	}
	for _, h := range s.hosts {
		if h.follower == nil {
			continue
		}
		for _, m := range h.report.GetMeasures() {
			if m.GetJob() != "" {
				add(m.GetJob())
			}
		}
	}
	slices.Sort(jobs)
	return slices.Compact(jobs)
}

// measuresOf returns a following proxy's lines on the measures of a job, and those of no known job;
// of all jobs if job is "". A proxy that does not follow has none: its last lines are out of date.
func measuresOf(h *host, job string) []*api.Measure {
	if h.follower == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(h.report.GetMeasures()), func(m *api.Measure) bool {
		return job != "" && m.GetJob() != "" && m.GetJob() != job
	})
}

// checkMeasures refuses a report with more lines or reasons than are kept.
func checkMeasures(r *api.CodecReport) error {
	if n := len(r.GetMeasures()); n > MaxMeasures {
		return status.Errorf(codes.InvalidArgument, "host %s reports %d measures, at most %d are kept", r.GetHost(), n, MaxMeasures)
	}
	for _, m := range r.GetMeasures() {
		if n := len(m.GetNot()); n > MaxGaps {
			return status.Errorf(codes.InvalidArgument, "host %s gives %d reasons for measure %.32q, at most %d are kept", r.GetHost(), n, m.GetMeasure(), MaxGaps)
		}
	}
	return nil
}

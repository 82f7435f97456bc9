package planner

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
)

// reported returns what the jobs that hosts report are called, by their schedulers'
// addresses.
func (s *Codecs) reported() map[string]string {
	if s.Jobs == nil {
		return nil
	}
	return s.Jobs()
}

// known returns what the jobs are called that there are: those reported, and those of
// which proxies that follow carry connections; and the one asked for, where that is by
// the address of its scheduler; the caller holds s.mu.
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

// measuresOf returns what a proxy that follows says of a job's measures, and of
// those of no known job; of all jobs where none is named.
func measuresOf(h *host, job string) []*api.Measure {
	if h.follower == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(h.report.GetMeasures()), func(m *api.Measure) bool {
		return job != "" && m.GetJob() != "" && m.GetJob() != job
	})
}

// checkMeasures refuses more than is kept.
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

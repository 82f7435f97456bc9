package planner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// sumsPrefix begins the names of the store's entries with rules on sums.
const sumsPrefix = "sums/"

// SetSums implements api.CodecsServer. Unlike rules for values, rules on sums are parsed: the
// planner shows and proposes them.
func (s *Codecs) SetSums(ctx context.Context, r *api.JobRules) (*api.CodecsSet, error) {
	if err := checkSums(r); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set(ctx, s.sums, sumsPrefix, r)
}

// checkSums returns the first fault of rules on sums.
func checkSums(r *api.JobRules) error {
	if err := check(r); err != nil {
		return err
	}
	if _, err := measure.ParseSumRules(r.GetRules()); err != nil {
		return fmt.Errorf("rules for job %s: %w", r.GetJob(), err)
	}
	return nil
}

// ProposeSums sets a job's rules on sums to those that the planner proposes, and removes its own
// earlier ones if it proposes none. Rules that an operator has set, under the job's address or its
// name, are never touched.
func (s *Codecs) ProposeSums(ctx context.Context, job, name string, proposed []measure.SumRule) error {
	for i := range proposed {
		proposed[i].By = measure.ByPlanner
	}
	text := ""
	if len(proposed) > 0 {
		b, err := json.Marshal(proposed)
		if err != nil {
			return err
		}
		text = string(b)
	}
	r := &api.JobRules{Job: job, Rules: text}
	if err := checkSums(r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sums[job] == text || !isOwn(s.sums[job]) || name != job && s.sums[name] != "" {
		return nil
	}
	_, err := s.set(ctx, s.sums, sumsPrefix, r)
	return err
}

// ProposedSums returns the jobs with rules on sums that the planner has made.
func (s *Codecs) ProposedSums() (jobs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for job, text := range s.sums {
		if isOwn(text) {
			jobs = append(jobs, job)
		}
	}
	slices.Sort(jobs)
	return jobs
}

// isOwn reports whether the planner has made all of the rules, or there are none.
func isOwn(text string) bool {
	rules, err := measure.ParseSumRules(text)
	return err == nil && !slices.ContainsFunc(rules, func(r measure.SumRule) bool { return r.By != measure.ByPlanner })
}

package client

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A SumsChange changes the rules that a planner has on whether pushes of a job's hosts
// are summed.
type SumsChange struct {
	ChangeOptions
	// Edit returns the rules that replace those of before.
	Edit func(before []measure.SumRule) ([]measure.SumRule, error)
}

// Propose returns the rules that the job has and those that it would have, as JSON;
// empty: none. It changes nothing.
func (s *SumsChange) Propose(ctx context.Context, c api.CodecsClient) (before, after string, err error) {
	d, err := c.Describe(ctx, &api.DescribeRulesRequest{Job: s.Job})
	if err != nil {
		return "", "", err
	}
	before = s.readFrom(d.GetRules().GetSums())
	if err := s.isThere(d, before != ""); err != nil {
		return "", "", err
	}
	was, err := measure.ParseSumRules(before)
	if err != nil {
		return "", "", err
	}
	rules, err := s.Edit(was)
	if err != nil || len(rules) == 0 {
		return before, "", err
	}
	if err := measure.CheckSumRules(rules); err != nil {
		return "", "", cli.UsageError{Err: err}
	}
	text, err := json.Marshal(rules)
	return before, string(text), err
}

// Carry sets rules, as Propose returns them, and waits until the proxies that follow the
// planner have taken them up; following is how many do. The planner's error is ABORTED if
// somebody else has changed the rules since Propose has read them; nothing is set then.
func (s *SumsChange) Carry(ctx context.Context, c api.CodecsClient, rules string) (d *api.CodecsDescription, following int, err error) {
	set, err := c.SetSums(ctx, s.request(rules))
	if err != nil {
		return nil, 0, err
	}
	return s.await(ctx, c, set.GetVersion(), rules, (*api.CodecRules).GetSums)
}

// WithoutSums returns rules without those for some keys.
func WithoutSums(rules []measure.SumRule, keys measure.KeyRange) []measure.SumRule {
	return slices.DeleteFunc(slices.Clone(rules), func(r measure.SumRule) bool { return r.Range() == keys })
}

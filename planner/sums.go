package planner

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A summer sets rules on sums of hosts' pushes of itself, by measured alpha, where the
// planner acts. What is proposed twice, one time after the other, is set: where ranges
// begin and end wanders a little as more is counted.
type summer struct {
	state  page.State
	rules  *Codecs
	title  func(job string) string      // what a job is called
	before map[string][]measure.SumRule // what was proposed the last time, by job
}

// sumsEvery is how often alpha is looked at.
const sumsEvery = 15 * time.Second

// sumPushes sets rules on sums until ctx ends.
func (p *Planner) sumPushes(ctx context.Context) {
	beat := p.opts.Health.Add("rules on sums", sumsEvery+health.Within)
	defer beat.End()
	s := summer{state: p.state, rules: p.codecs, title: p.state.Title}
	look := time.NewTicker(sumsEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		beat.Beat()
		s.updateRules(ctx)
	}
}

// updateRules sets the rules of all jobs, and takes back those of jobs that are over.
func (s *summer) updateRules(ctx context.Context) {
	now := map[string][]measure.SumRule{}
	for _, j := range s.state.Jobs() {
		if j.State == page.Over || len(now) >= MaxCodecJobs {
			continue
		}
		proposed, err := s.propose(j.Name)
		if err != nil {
			continue // it may just have ended
		}
		now[j.Name] = proposed
		if before, ok := s.before[j.Name]; ok && alike(before, proposed) {
			s.set(ctx, j.Name, proposed)
		}
	}
	for _, job := range s.rules.ProposedSums() {
		if _, ok := now[job]; !ok {
			s.set(ctx, job, nil)
		}
	}
	s.before = now
}

func (s *summer) set(ctx context.Context, job string, rules []measure.SumRule) {
	if err := s.rules.ProposeSums(ctx, job, s.title(job), slices.Clone(rules)); err != nil {
		slog.Warn("rules on sums of a job's pushes are not set", "job", job, "error", err)
	}
}

// propose returns the rules that save bytes, by what is known of a job; none where
// nothing does.
func (s *summer) propose(job string) ([]measure.SumRule, error) {
	a, err := page.AlphaOf(s.state, job, sumsBlocks, nil)
	if err != nil {
		return nil, err
	}
	return a.SumRules(), nil
}

// sumsBlocks is how finely keys are looked at.
const sumsBlocks = 64

func alike(a, b []measure.SumRule) bool {
	return slices.EqualFunc(a, b, func(a, b measure.SumRule) bool { return a.Form == b.Form && a.Range() == b.Range() })
}

package planner

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// A summer sets rules on sums of hosts' pushes from measured alpha, for planners that act. The ends
// of ranges wander a little as more is counted, so a proposal is set only when two in a row agree:
// each change of a rule makes proxies regroup their pushes.
type summer struct {
	state page.State
	rules *Codecs
	title func(job string) string // what a job is called
	// The previous proposal of each job.
	before map[string][]measure.SumRule
}

// Alpha is evaluated every sumsEvery, or as rarely as keeps it within one sumsPart of the time, but
// at least every sumsRarely: with a thousand hosts it sums up a million pairs of workers and servers.
const (
	sumsEvery  = 15 * time.Second
	sumsPart   = 50
	sumsRarely = 5 * time.Minute
)

// sumsAfter returns how long to wait after an evaluation that took that long.
func sumsAfter(took time.Duration) time.Duration {
	return min(max(sumsEvery, took*sumsPart), sumsRarely)
}

// sumPushes keeps the rules on sums up to date, until ctx ends.
func (p *Planner) sumPushes(ctx context.Context) {
	beat := p.opts.Health.Add("rules on sums", sumsEvery+health.Within)
	defer beat.End()
	s := summer{state: p.state, rules: p.codecs, title: p.state.Title}
	look := time.NewTimer(sumsEvery)
	defer look.Stop()
	for {
		beat.Rest() // the wait may be long
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		beat.Beat()
		begin := time.Now()
		s.updateRules(ctx)
		look.Reset(sumsAfter(time.Since(begin)))
	}
}

// updateRules sets the rules of all running jobs, and removes those of jobs that are over.
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
		slog.Warn("cannot set rules on sums for a job", "job", job, "error", err)
	}
}

// propose returns the rules that would save bytes by what is known of a job; none if none would.
func (s *summer) propose(job string) ([]measure.SumRule, error) {
	a, err := page.AlphaOf(s.state, job, sumsBlocks, nil)
	if err != nil {
		return nil, err
	}
	return a.SumRules(), nil
}

// sumsBlocks is into how many blocks the keys are divided to find ranges.
const sumsBlocks = 64

// alike reports whether two lists have the same forms for the same ranges, whoever has made them.
func alike(a, b []measure.SumRule) bool {
	return slices.EqualFunc(a, b, func(a, b measure.SumRule) bool { return a.Form == b.Form && a.Range() == b.Range() })
}

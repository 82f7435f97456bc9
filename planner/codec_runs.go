package planner

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// runPrefix begins the names of the store's entries with rules that hold for a run.
const runPrefix = "codecs-run/"

// JobProcesses is what agents report of a job's processes.
type JobProcesses struct {
	Since  time.Time       // when the first of them started; zero: there are none
	On     []string        // the hosts that have some
	Lately map[string]bool // all hosts that have reported lately
}

// forRun is rules of a job that hold until its run is over: psidecar plan codecs drain sets them so
// that a model can be saved, which says nothing of the next run.
type forRun struct {
	Set   time.Time `json:"set"`
	Hosts []string  `json:"hosts,omitempty"` // that had processes of the job then
	Rules string    `json:"rules"`
	Later string    `json:"later,omitempty"` // the job's rules after that
}

// clocksDiffer is by how much hosts' clocks may differ.
const clocksDiffer = 5 * time.Second

// isOver reports whether another run has begun: all processes have started since the rules were
// set. A worker that is replaced is no new run, so the hosts that had processes of the job have to
// be heard.
func (r *forRun) isOver(p JobProcesses) bool {
	if slices.ContainsFunc(r.Hosts, func(host string) bool { return !p.Lately[host] }) {
		return false
	}
	return p.Since.After(r.Set.Add(clocksDiffer))
}

// entry returns what the store keeps of rules for a run of a job; r is nil if there are none.
func (r *forRun) entry(job string) (store.Entry, error) {
	e := store.Entry{Name: runPrefix + job}
	if r == nil {
		return e, nil
	}
	var err error
	e.Value, err = json.Marshal(r)
	return e, err
}

// beginRun returns what is to be kept of rules that hold for a run; nil of others. It is called
// without s.mu.
func (s *Codecs) beginRun(r *api.JobRules) *forRun {
	if !r.GetForRun() || r.GetRules() == "" {
		return nil
	}
	began := &forRun{Set: s.now(), Rules: r.GetRules(), Later: r.GetLater()}
	if s.Runs != nil {
		began.Hosts = s.Runs(r.GetJob()).On
	}
	return began
}

// EndRuns sets the later rules of jobs whose rules were for a run that is over.
func (s *Codecs) EndRuns(ctx context.Context) error {
	if s.Runs == nil {
		return nil
	}
	s.mu.Lock()
	all := make(map[string]*forRun, len(s.forRun))
	for job, r := range s.forRun {
		all[job] = r
	}
	s.mu.Unlock()
	for job, r := range all {
		if !r.isOver(s.Runs(job)) {
			continue
		}
		if err := s.endRun(ctx, job, r); err != nil {
			return err
		}
	}
	return nil
}

// endRun sets the later rules of a job, unless somebody has changed its rules meanwhile.
func (s *Codecs) endRun(ctx context.Context, job string, r *forRun) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forRun[job] != r {
		return nil
	}
	if _, err := s.set(ctx, s.rules, codecPrefix, &api.JobRules{Job: job, Rules: r.Later}, store.Entry{Name: runPrefix + job}); err != nil {
		return err
	}
	delete(s.forRun, job)
	slog.Info("a job's run is over, and with it the rules that were for it alone: those of before hold again", "job", job, "rules", r.Later)
	return nil
}

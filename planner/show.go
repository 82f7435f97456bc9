package planner

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/fleet"
)

// planOf returns a job's plan for the page. Errors wrap page.ErrNoJob, which the page turns into
// "not found".
func (p *Planner) planOf(job string) (page.Plan, error) {
	d, err := p.plans.Describe(context.Background(), &api.DescribeRequest{Job: job})
	if err != nil || job == "" || len(d.GetJobs()) != 1 {
		return page.Plan{}, fmt.Errorf("%w with a plan: %q", page.ErrNoJob, job)
	}
	return fleet.Plan(d.GetJobs()[0]), nil
}

// runsOf returns the runs of a job, by its scheduler's address or its name, or of all jobs if job
// is "".
func (p *Planner) runsOf(job string) (page.Runs, error) {
	if job == "" {
		return p.runs.Runs(""), nil
	}
	found := p.runs.Runs(p.state.Title(job))
	if len(found.Jobs) == 0 {
		return found, fmt.Errorf("%w with a history: %q", page.ErrNoJob, job)
	}
	return found, nil
}

// codecsOf returns a job's rules, and what codecs would save, for the page. Rules for its address
// come before those for its name, which hold for all runs of that name.
func (p *Planner) codecsOf(job string) (page.Codecs, error) {
	d, err := p.codecs.Describe(context.Background(), &api.DescribeRulesRequest{Job: job})
	if err != nil {
		return page.Codecs{}, err
	}
	shown := fleet.Codecs(job, d)
	if name := p.state.Title(job); shown.Rules == "" && name != job { // those of all its runs
		if d, err := p.codecs.Describe(context.Background(), &api.DescribeRulesRequest{Job: name}); err == nil {
			shown.Rules = fleet.Codecs(name, d).Rules
		}
	}
	return shown, nil
}

// sumsOf returns the rules on sums of a job's pushes, for the page, by its address or else by its
// name.
func (p *Planner) sumsOf(job string) page.SumRules {
	shown := page.SumRules{Acts: p.opts.Act}
	for _, name := range []string{job, p.state.Title(job)} {
		d, err := p.codecs.Describe(context.Background(), &api.DescribeRulesRequest{Job: name})
		if err != nil {
			return shown
		}
		shown.Hosts = fleet.Codecs(name, d).Hosts
		if all := d.GetRules().GetSums(); len(all) > 0 {
			if rules, err := measure.ParseSumRules(all[0].GetRules()); err == nil {
				shown.Rules = rules
				break
			}
		}
	}
	return shown
}

// measures returns the lines of all following proxies on the measures of all jobs, by host.
func (p *Planner) measures() [][]measure.Line {
	d, err := p.codecs.Describe(context.Background(), &api.DescribeRulesRequest{})
	if err != nil {
		return nil
	}
	var hosts [][]measure.Line
	for _, f := range d.GetFollowers() {
		hosts = append(hosts, api.MeasuresFrom(f.GetMeasures()))
	}
	return hosts
}

// hourWithin is how long one turn of keepHour may take before it counts as hung.
const hourWithin = history.Every + health.Within

// keepHour samples the curves of the last hour, until ctx ends.
func (p *Planner) keepHour(ctx context.Context) {
	beat := p.opts.Health.Add("keeping the last hour", hourWithin)
	defer beat.End()
	ticker := time.NewTicker(history.Every)
	defer ticker.Stop()
	for {
		beat.Beat()
		now, reports := time.Now(), p.reports.All()
		p.curves.Note(now, reports)
		p.curves.See(now, reports, p.measures())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// handler returns the handler for the page and its API.
func (p *Planner) handler() http.Handler {
	metrics := []prometheus.Collector{p.plans.Metrics(), p.opts.Policy, p.opts.Front.Guard, silenced(p.reports)}
	if own := p.opts.Identity; own != nil {
		metrics = append(metrics, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "psidecar_planner_certificate_expiry_timestamp_seconds", Help: "When the certificate in use expires, in Unix seconds."},
			func() float64 { return float64(own.Expires().Unix()) }))
	}
	metrics = append(metrics, p.opts.Collectors...)
	shown := page.Handler(p.state, page.Options{Health: p.opts.Health, Metrics: p.state.Metrics(metrics...), Plan: p.planOf, Codecs: p.codecsOf, Sums: p.sumsOf, Runs: p.runsOf, History: p.curves.History, Names: p.opts.Names})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" {
			p.reports.Watch()
		}
		shown.ServeHTTP(w, r)
	})
}

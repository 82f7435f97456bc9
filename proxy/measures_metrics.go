package proxy

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/planner/api/measure"
)

var (
	descMeasure    = prometheus.NewDesc("psidecar_proxy_measure_connections", "Open connections made by processes of this host, by job, measure and state (on or off). The measures are named as in psidecar status.", []string{"job", "measure", "state"}, nil)
	descResidual   = prometheus.NewDesc("psidecar_proxy_residual_steps", "Norm of the gradient that --threshold holds back of the pushes of a job's workers on this host, over the norm of what one step pushes.", []string{"job"}, nil)
	descMeasureNot = prometheus.NewDesc("psidecar_proxy_measure_off_connections", "Connections on which the measure is off, by reason; 1 if the reason is not specific to a connection. not_set: not enabled.", []string{"job", "measure", "reason"}, nil)
)

// maxMeasured bounds the jobs that have series of their own.
const maxMeasured = 64

// collectMeasures sends the measures of up to maxMeasured jobs as metrics.
func (p *Proxy) collectMeasures(out chan<- prometheus.Metric) {
	lines := p.Measures()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for i := range lines {
		lines[i].Job = p.opts.Titles.Name(lines[i].Job)
	}
	// Before the bound, so that it counts names and not runs.
	lines = measure.Sum(lines) // runs of one name have one series
	for i := range lines[:min(len(lines), maxMeasured*len(measure.All))] {
		l := &lines[i]
		gauge(descMeasure, l.On, l.Job, l.Measure, measure.On)
		gauge(descMeasure, l.Connections-l.On, l.Job, l.Measure, measure.Off)
		if steps, ok := l.Steps(); ok {
			out <- prometheus.MustNewConstMetric(descResidual, prometheus.GaugeValue, steps, l.Job)
		}
		reasons := map[string]int{}
		for _, g := range l.Not {
			// A gap of the job as a whole concerns no connection in particular, and counts as
			// one.
			reasons[g.Reason] += max(g.Connections, 1)
		}
		for _, r := range slices.Sorted(maps.Keys(reasons)) {
			gauge(descMeasureNot, reasons[r], l.Job, l.Measure, r)
		}
	}
}

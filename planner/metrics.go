package planner

import (
	"github.com/prometheus/client_golang/prometheus"
)

// planMetrics are the metrics of the plans. A planner without the lead exports none.
type planMetrics struct{ planner *Planner }

// Describe implements prometheus.Collector.
func (m planMetrics) Describe(out chan<- *prometheus.Desc) { m.planner.Plans().Metrics().Describe(out) }

// Collect implements prometheus.Collector.
func (m planMetrics) Collect(out chan<- prometheus.Metric) {
	if service := m.planner.Plans(); service != nil {
		service.Metrics().Collect(out)
	}
}

// silenced counts reports of hosts for which a newer agent speaks.
func silenced(s *ReportStore) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "psidecar_planner_silenced_reports_total", Help: "Reports ignored because a newer connection reports for the same host: two agents have the same name.",
	}, func() float64 { return float64(s.Silenced()) })
}

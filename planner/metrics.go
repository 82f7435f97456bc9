package planner

import "github.com/prometheus/client_golang/prometheus"

// silenced counts reports of hosts for which a newer agent speaks.
func silenced(s *ReportStore) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "psidecar_planner_silenced_reports_total", Help: "Reports ignored because a newer connection reports for the same host: two agents have the same name.",
	}, func() float64 { return float64(s.Silenced()) })
}

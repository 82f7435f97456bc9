package daemon

import "github.com/prometheus/client_golang/prometheus"

var (
	adoptedTotal = prometheus.NewDesc("psidecar_adopted_total", "Connections that bypassed the proxy and were closed gracefully by their processes.", nil, nil)
	leftTotal    = prometheus.NewDesc("psidecar_adopt_left_total", "Connections through the proxy that gained nothing by it and were closed gracefully by their processes.", nil, nil)
	refusedTotal = prometheus.NewDesc("psidecar_adopt_refused_total", "Attempts to adopt a connection that were given up, by reason.", []string{"reason"}, nil)
	pastNow      = prometheus.NewDesc("psidecar_adopt_past", "Connections that bypass the proxy, by reason why they are not adopted.", []string{"reason"}, nil)
)

// Describe implements [prometheus.Collector].
func (a *Adopter) Describe(out chan<- *prometheus.Desc) {
	out <- adoptedTotal
	out <- leftTotal
	out <- refusedTotal
	out <- pastNow
}

// Collect implements [prometheus.Collector].
func (a *Adopter) Collect(out chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out <- prometheus.MustNewConstMetric(adoptedTotal, prometheus.CounterValue, float64(a.adopted))
	out <- prometheus.MustNewConstMetric(leftTotal, prometheus.CounterValue, float64(a.left))
	for _, why := range reasons {
		out <- prometheus.MustNewConstMetric(refusedTotal, prometheus.CounterValue, float64(a.tries[why]), string(why))
		out <- prometheus.MustNewConstMetric(pastNow, prometheus.GaugeValue, float64(a.now[why]), string(why))
	}
}

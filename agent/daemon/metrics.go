package daemon

import "github.com/prometheus/client_golang/prometheus"

var (
	adoptedTotal = prometheus.NewDesc("psidecar_adopted_total", "Connections that went past the proxy, were ended in order and closed by their processes.", nil, nil)
	refusedTotal = prometheus.NewDesc("psidecar_adopt_refused_total", "Times that a connection was looked at closely and not adopted, by reason.", []string{"reason"}, nil)
	pastNow      = prometheus.NewDesc("psidecar_adopt_past", "Connections that go past the proxy, by why they are not adopted now.", []string{"reason"}, nil)
)

// Describe implements [prometheus.Collector].
func (a *Adopter) Describe(out chan<- *prometheus.Desc) {
	out <- adoptedTotal
	out <- refusedTotal
	out <- pastNow
}

// Collect implements [prometheus.Collector].
func (a *Adopter) Collect(out chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out <- prometheus.MustNewConstMetric(adoptedTotal, prometheus.CounterValue, float64(a.adopted))
	for _, why := range reasons {
		out <- prometheus.MustNewConstMetric(refusedTotal, prometheus.CounterValue, float64(a.tries[why]), string(why))
		out <- prometheus.MustNewConstMetric(pastNow, prometheus.GaugeValue, float64(a.now[why]), string(why))
	}
}

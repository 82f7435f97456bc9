package fleet

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var (
	hostsDesc = prometheus.NewDesc("psidecar_planner_hosts", "Hosts that have sent reports.", nil, nil)
	jobsDesc  = prometheus.NewDesc("psidecar_planner_jobs", "Jobs in the reports.", nil, nil)
	leftDesc  = prometheus.NewDesc("psidecar_planner_left_host_bytes_total", "Bytes of the job's messages that left the reporting hosts.", []string{"job"}, nil)
	bytesDesc = prometheus.NewDesc("psidecar_planner_bytes_total", "Bytes of the job's messages.", []string{"job"}, nil)
)

// Metrics returns a handler for the planner's metrics, together with others of its process. It must
// be called once.
func (s *State) Metrics(others ...prometheus.Collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{s})
	r.MustRegister(others...)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// A collector computes the fleet's metrics from the reports at each scrape. A job's label is its
// name; of several jobs of one name only the newest has a series, so that series do not collide.
type collector struct{ state *State }

// Describe implements prometheus.Collector.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{hostsDesc, jobsDesc, leftDesc, bytesDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	jobs := c.state.Jobs()
	out <- prometheus.MustNewConstMetric(hostsDesc, prometheus.GaugeValue, float64(len(c.state.Reports())))
	out <- prometheus.MustNewConstMetric(jobsDesc, prometheus.GaugeValue, float64(len(jobs)))
	titles := c.state.Titles()
	for _, j := range jobs {
		name := j.Name
		if t, ok := titles[name]; ok {
			// The counters of an older job of the name would otherwise collide with the newest
			// one's.
			if !t.Current {
				continue
			}
			name = t.Name
		}
		out <- prometheus.MustNewConstMetric(bytesDesc, prometheus.CounterValue, float64(j.Bytes), name)
		out <- prometheus.MustNewConstMetric(leftDesc, prometheus.CounterValue, float64(j.LeftHostBytes), name)
	}
}

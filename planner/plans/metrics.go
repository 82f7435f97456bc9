package plans

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/planner/api"
)

// Metrics of plans. Sums over plans are gauges, not counters, because they shrink when an old plan
// is dropped. Labels are jobs, at most MaxJobs, and the reasons of the proxies' fixed list.
var (
	displacedKeys = prometheus.NewDesc("psidecar_planner_displaced_keys", "Keys that are not at home.", []string{"job"}, nil)
	pendingKeys   = prometheus.NewDesc("psidecar_planner_pending_keys", "Keys of active plans that have not moved yet.", []string{"job"}, nil)
	movedKeys     = prometheus.NewDesc("psidecar_planner_moved_keys", "Keys moved by the plans that are still known.", []string{"job"}, nil)
	movedBytes    = prometheus.NewDesc("psidecar_planner_moved_bytes", "Bytes of values moved by the plans that are still known.", []string{"job"}, nil)
	refusedKeys   = prometheus.NewDesc("psidecar_planner_refused_keys", "Keys that were not moved by the plans that are still known, by reason.", []string{"job", "reason"}, nil)
	storeLost     = prometheus.NewDesc("psidecar_planner_store_lost", "1 if the store does not know the key owners of the job's newest run, because it was lost or is an old copy, and waits for proxies to teach it; otherwise 0.", []string{"job"}, nil)
	foreignTotal  = prometheus.NewDesc("psidecar_planner_foreign_reports_total", "Reports on moves ignored because the host's proxy does not watch the run.", nil, nil)
	newestEpoch   = prometheus.NewDesc("psidecar_planner_epoch", "Number of the newest plan.", []string{"job"}, nil)
)

// Describe implements prometheus.Collector; see [Service.Describe] for the rest of
// the state of plans.
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{displacedKeys, pendingKeys, movedKeys, movedBytes, refusedKeys, storeLost, foreignTotal, newestEpoch} {
		out <- d
	}
}

// Metrics returns a collector of the service's metrics. It must be registered once.
func (s *Service) Metrics() prometheus.Collector { return collector{s} }

// A collector reads the metrics from Describe at each scrape, so that none of them can drift from
// what operators are shown.
type collector struct{ service *Service }

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	all, err := c.service.Describe(context.Background(), &api.DescribeRequest{})
	if err != nil {
		out <- prometheus.NewInvalidMetric(displacedKeys, err)
		return
	}
	out <- prometheus.MustNewConstMetric(foreignTotal, prometheus.CounterValue, float64(c.service.foreign.Load()))
	for _, j := range all.GetJobs() {
		name := j.GetJob()
		if title := c.service.opts.Title; title != nil {
			var current bool
			if name, current = title(name); !current {
				continue // of the runs of one name the newest has its series
			}
		}
		gauge := func(d *prometheus.Desc, n uint64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), name)
		}
		var moved, bytes, pending, newest uint64
		refused := map[string]uint64{}
		for _, e := range j.GetEpochs() {
			moved += e.GetMovedKeys()
			bytes += e.GetMovedBytes()
			newest = max(newest, e.GetEpoch())
			if e.GetState() == api.Epoch_MOVING {
				pending += e.GetPendingKeys()
			}
			for _, r := range e.GetRefused() {
				refused[r.GetReason()] += r.GetKeys()
			}
		}
		gauge(displacedKeys, j.GetDisplacedKeys())
		gauge(pendingKeys, pending)
		gauge(newestEpoch, newest)
		lost := uint64(0)
		if j.GetLost() != "" {
			lost = 1
		}
		gauge(storeLost, lost)
		gauge(movedKeys, moved)
		gauge(movedBytes, bytes)
		for reason, n := range refused {
			out <- prometheus.MustNewConstMetric(refusedKeys, prometheus.GaugeValue, float64(n), name, reason)
		}
	}
}

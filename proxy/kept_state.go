package proxy

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/proxy/keep"
)

// KeptState describes the connections that can outlive the proxies that carry them.
type KeptState struct {
	Now   int                    `json:"now"`   // connections that would outlive this proxy
	Taken uint64                 `json:"taken"` // resumed over another link
	Lost  uint64                 `json:"lost"`  // could not be resumed, and were reset
	Ended map[keep.Reason]uint64 `json:"ended"` // not kept any more, by reason
}

var (
	descKept  = prometheus.NewDesc("psidecar_proxy_kept_connections", "Connections that would survive a kill of this proxy (--outlive).", nil, nil)
	descTaken = prometheus.NewDesc("psidecar_proxy_taken_up_total", "Connections whose link broke or whose proxy was killed, by outcome: resumed, or lost and reset.", []string{"result"}, nil)
	descEnded = prometheus.NewDesc("psidecar_proxy_unkept_total", "Connections that are no longer held: over (closed), stopping (graceful shutdown of a proxy), no_acks (the other proxy has disconnected), values (a rule changes values).", []string{"reason"}, nil)
)

// state returns the state, and nil where keeping connections was not asked for: then it is
// left out of the answer.
func (k *kept) state() *KeptState {
	if k.keeper.Load() == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return &KeptState{Now: len(k.all), Taken: k.taken, Lost: k.lost, Ended: maps.Clone(k.ended)}
}

// collect sends the state as metrics.
func (k *kept) collect(out chan<- prometheus.Metric) {
	s := k.state()
	if s == nil {
		return
	}
	out <- prometheus.MustNewConstMetric(descKept, prometheus.GaugeValue, float64(s.Now))
	for result, n := range map[string]uint64{"taken": s.Taken, "lost": s.Lost} {
		out <- prometheus.MustNewConstMetric(descTaken, prometheus.CounterValue, float64(n), result)
	}
	for why, n := range s.Ended {
		out <- prometheus.MustNewConstMetric(descEnded, prometheus.CounterValue, float64(n), string(why))
	}
}

package proxy

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// PassState counts what became of connections when a proxy ended in order, this one or that at the
// other end.
type PassState struct {
	Taken   uint64            `json:"taken"`             // went on over another link, in this proxy
	Left    uint64            `json:"left"`              // handed to the next proxy
	Lost    uint64            `json:"lost"`              // could not go on, and were reset
	Drained map[string]uint64 `json:"drained,omitempty"` // ended in order instead, by reason
}

var (
	descPassed  = prometheus.NewDesc("psidecar_proxy_passed_total", "Connections whose link ended because of a graceful shutdown, by outcome: taken (continued over another link), left (handed to the next proxy) or lost (reset).", []string{"result"}, nil)
	descDrained = prometheus.NewDesc("psidecar_proxy_drained_total", "Connections drained instead of being handed to the next proxy: no_agent (no agent to hold them), no_room (the agent's limit is reached), other_proxy (none or an older one at the other end), no_messages (a stream without a codec, or not of messages), not_set_up (reset before anything was carried, as while it waited for the other proxy).", []string{"reason"}, nil)
)

// state returns a copy of the counts.
func (s *passes) state() *PassState {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.counts
	// The caller reads it without the lock.
	now.Drained = maps.Clone(now.Drained)
	return &now
}

// collect sends the counts as metrics.
func (s *passes) collect(out chan<- prometheus.Metric) {
	now := s.state()
	for result, n := range map[string]uint64{"taken": now.Taken, "left": now.Left, "lost": now.Lost} {
		out <- prometheus.MustNewConstMetric(descPassed, prometheus.CounterValue, float64(n), result)
	}
	for why, n := range now.Drained {
		out <- prometheus.MustNewConstMetric(descDrained, prometheus.CounterValue, float64(n), why)
	}
}

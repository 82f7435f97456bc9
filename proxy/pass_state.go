package proxy

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// PassState is what became of connections when a proxy ended in order, this one or the
// one at the other end.
type PassState struct {
	Taken   uint64            `json:"taken"`             // went on over another link, here
	Left    uint64            `json:"left"`              // handed to the next proxy
	Lost    uint64            `json:"lost"`              // could not go on, and were reset
	Drained map[string]uint64 `json:"drained,omitempty"` // ended in order instead, by reason
}

var (
	descPassed  = prometheus.NewDesc("psidecar_proxy_passed_total", "Connections whose link ended since a proxy ended in order, by what became of them: taken (went on over another link), left (handed to the next proxy) or lost (reset).", []string{"result"}, nil)
	descDrained = prometheus.NewDesc("psidecar_proxy_drained_total", "Connections that were ended instead of being handed to the next proxy: no_agent (nobody holds them), no_room (the agent holds no more), other_proxy (there is none at the other end, or an older one), no_messages (a stream without a codec, or not of messages).", []string{"reason"}, nil)
)

func (s *passes) state() *PassState {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.counts
	now.Drained = maps.Clone(now.Drained)
	return &now
}

func (s *passes) collect(out chan<- prometheus.Metric) {
	now := s.state()
	for result, n := range map[string]uint64{"taken": now.Taken, "left": now.Left, "lost": now.Lost} {
		out <- prometheus.MustNewConstMetric(descPassed, prometheus.CounterValue, float64(n), result)
	}
	for why, n := range now.Drained {
		out <- prometheus.MustNewConstMetric(descDrained, prometheus.CounterValue, float64(n), why)
	}
}

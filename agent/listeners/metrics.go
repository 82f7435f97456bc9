package listeners

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/bpf/redirect"
)

// The metrics. Label values come from lists in the source, so the number of series is bounded.
var (
	connects = prometheus.NewDesc("psidecar_intercept_events_total",
		"Connects that were redirected, went direct or were refused, and lookups of their destinations, by reason.", []string{"reason", "class"}, nil)
	groupsNow = prometheus.NewDesc("psidecar_intercept_groups",
		"Cgroups whose connects are redirected, by what happens to a connect without a proxy.", []string{"policy"}, nil)
	proxiesNow = prometheus.NewDesc("psidecar_intercept_proxies", "Proxies that hold this host's listeners.", nil, nil)
	fullNow    = prometheus.NewDesc("psidecar_intercept_full", "1 while the proxies accept no more connections of some cgroup and its connects bypass them.", nil, nil)
	hungTotal  = prometheus.NewDesc("psidecar_intercept_hung_proxies_total", "Proxies that did not answer the agent's pings, by whether they were killed or could not be.", []string{"result"}, nil)
	keptNow    = prometheus.NewDesc("psidecar_intercept_kept_connections", "Connections and ack links that the agent holds for the successor of a killed proxy.", nil, nil)
	keptTotal  = prometheus.NewDesc("psidecar_intercept_kept_connections_total", "Connections left by killed proxies, by outcome: handed to another proxy, or lost because there was none.", []string{"result"}, nil)
	openNow    = prometheus.NewDesc("psidecar_intercept_listeners", "Open listeners in network namespaces.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (l *Listeners) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connects, groupsNow, proxiesNow, fullNow, hungTotal, keptNow, keptTotal, openNow} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (l *Listeners) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return // and so is the state that they are read from
	}
	counts, err := l.opts.Redirect.Counts()
	if err != nil {
		out <- prometheus.NewInvalidMetric(connects, err)
	}
	for i, n := range counts {
		r := redirect.Reason(i)
		out <- prometheus.MustNewConstMetric(connects, prometheus.CounterValue, float64(n), r.String(), r.Class().String())
	}
	groups, err := l.opts.Redirect.Groups()
	if err != nil {
		out <- prometheus.NewInvalidMetric(groupsNow, err)
	}
	closed := 0
	// By policy only: the cgroups' paths would make a series for every pod that ever ran.
	for _, g := range groups {
		if g.Policy.FailClosed {
			closed++
		}
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(groupsNow, closed, "fail_closed")
	gauge(groupsNow, len(groups)-closed, "fail_open")
	gauge(proxiesNow, len(l.proxies))
	full := 0
	for at := range l.open {
		if !l.hasRoom(at.group) {
			full = 1
		}
	}
	gauge(fullNow, full)
	for result, n := range map[string]uint64{"ended": l.hung.ended.Load(), "failed": l.hung.failed.Load()} {
		out <- prometheus.MustNewConstMetric(hungTotal, prometheus.CounterValue, float64(n), result)
	}
	held, given, lost := l.kept.counts()
	gauge(keptNow, held)
	for result, n := range map[string]uint64{"given": given, "lost": lost} {
		out <- prometheus.MustNewConstMetric(keptTotal, prometheus.CounterValue, float64(n), result)
	}
	sockets := 0
	for _, o := range l.listeners() {
		sockets += len(o.sockets)
	}
	gauge(openNow, sockets)
}

// Takes reports whether a connect from a cgroup, or from one below it, would now be accepted by
// a proxy: the cgroup's group has a listener somewhere, and a proxy has room. It does not look
// at network namespaces.
func (l *Listeners) Takes(cgroup string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.groupAbove(cgroup)
	if l.closed || len(l.proxies) == 0 || !ok || !l.hasRoom(id) {
		return false
	}
	for at := range l.open {
		if id == at.group {
			return true
		}
	}
	return false
}

// Proxies returns how many proxies hold the listeners.
func (l *Listeners) Proxies() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.proxies)
}

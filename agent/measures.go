package agent

import (
	"slices"

	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// Carried is what an agent knows of its host's proxy. Its functions may be nil.
type Carried struct {
	// Proxies returns the number of proxies that take connections of jobs; nil: nothing is
	// intercepted.
	Proxies func() int
	// Measures returns the lines of a proxy in this process about a job. only says that no
	// other job runs here, so that connections of an unknown job are its own.
	Measures func(job string, only bool) []measure.Line
}

// measures returns the lines about a job's measures: the agent's own (observe), and the proxy's
// if it is in this process. If none of the job's connections can reach a proxy, that is the
// reason shown for each measure, instead of the proxy's.
func (a *Agent) measures(v *observe.JobView, j *page.Job) []measure.Line {
	lines := []measure.Line{}
	if j.State == page.Over {
		return lines
	}
	lines = append(lines, page.Observed(j))
	why := a.uncarried(v)
	if a.opts.Carried.Measures == nil {
		return append(lines, carriedBeside(j.Name, why))
	}
	if why == nil {
		why = a.spared()
	}
	// A measure that nobody asked for keeps that as its reason: that connections cannot reach
	// the proxy is not what keeps it off.
	for _, l := range a.opts.Carried.Measures(j.Name, a.running() == 1) {
		if why != nil && l.Connections == 0 && !notSet(&l) {
			l.Not = []measure.Gap{*why}
		}
		lines = append(lines, l)
	}
	return lines
}

// notSet reports whether a measure is off because nobody asked for it.
func notSet(l *measure.Line) bool {
	return slices.ContainsFunc(l.Not, func(g measure.Gap) bool { return g.Reason == measure.NotSet })
}

// carriedBeside returns the line about carrying if the proxy, if any, is another process, which
// alone knows the connections.
func carriedBeside(job string, why *measure.Gap) measure.Line {
	l := measure.Line{Job: job, Measure: measure.Carry, Not: []measure.Gap{}}
	if why != nil {
		l.Lack(*why)
		l.Judge()
		return l
	}
	l.State, l.Setting, l.From = measure.On, "--intercept; for details: psidecar status --proxy 127.0.0.1:9813", "flags"
	return l
}

// uncarried returns why none of a job's connections can go to a proxy; nil: they can.
func (a *Agent) uncarried(v *observe.JobView) *measure.Gap {
	switch {
	case a.opts.Carried.Proxies == nil:
		return &measure.Gap{Reason: "not_intercepted", Why: "connections are only watched, not redirected to a proxy",
			Do: "run psidecar up, or psidecar agent --intercept and psidecar proxy, on every host of the job"}
	case onLoopback(v):
		return &measure.Gap{Reason: "loopback", Why: "the job's nodes use loopback addresses (127.0.0.1), which are never proxied",
			Do: "use the hosts' addresses (DMLC_PS_ROOT_URI, DMLC_NODE_HOST or DMLC_INTERFACE); for a trial on one machine use psidecar demo"}
	case a.opts.Carried.Proxies() == 0:
		return &measure.Gap{Reason: "no_proxy_here", Why: "no proxy on this host accepts its connections", Do: "start psidecar proxy with this agent's --proxy-socket"}
	}
	return nil
}

// spared returns why connections go direct although there is a proxy for them; nil: they do not.
func (a *Agent) spared() *measure.Gap {
	if a.opts.Adoption == nil || a.opts.Adoption().Past[page.FastLink] == 0 {
		return nil
	}
	return &measure.Gap{Reason: "fast_link", Why: "direct: the link is fast", Do: "taken in when it is the bottleneck, or always with --codec compact"}
}

// onLoopback reports whether all nodes of a job have loopback addresses.
func onLoopback(v *observe.JobView) bool {
	if !v.Job.Scheduler.Addr().IsLoopback() {
		return false
	}
	return !slices.ContainsFunc(v.Nodes, func(n observe.NodeView) bool {
		at := n.Address.Addr()
		return at.IsValid() && !at.IsUnspecified() && !at.IsLoopback()
	})
}

// running returns the number of jobs that are not over.
func (a *Agent) running() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, f := range a.findings {
		if f.State != page.Over {
			n++
		}
	}
	return n
}

var (
	measureOn  = describe("measure_connections", "Connections of a job by measure and state (on or off), for observe and carry; psidecar_proxy_measure_connections of the proxy has the other measures.", "job", "measure", "state")
	measureOff = describe("measure_off_connections", "Connections on which the measure is off, by reason; 1 if the reason is not specific to a connection.", "job", "measure", "reason")
)

// measures sends the metrics of the agent's own measures; a proxy sends those of the others.
func (s sender) measures(name string, j *page.Job) {
	for i := range j.Measures {
		l := &j.Measures[i]
		if l.Measure != measure.Observe && l.Measure != measure.Carry {
			continue
		}
		s.gauge(measureOn, float64(l.On), name, l.Measure, measure.On)
		s.gauge(measureOn, float64(l.Connections-l.On), name, l.Measure, measure.Off)
		reasons := map[string]int{}
		for _, g := range l.Not {
			reasons[g.Reason] += max(g.Connections, 1)
		}
		for reason, n := range reasons {
			s.gauge(measureOff, float64(n), name, l.Measure, reason)
		}
	}
}

package agent

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
)

// maxPairs bounds the pairs of nodes with metrics of their own. Larger jobs have those by
// worker and by server only.
const maxPairs = 1024

// metrics returns a handler for /metrics. Values are collected at each request.
func (a *Agent) metrics() http.Handler {
	return promhttp.HandlerFor(a.Gatherer(), promhttp.HandlerOpts{})
}

// Gatherer returns what /metrics serves. Each call makes a registry of its own.
func (a *Agent) Gatherer() prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collector{a},
	)
	registry.MustRegister(a.opts.Collectors...)
	return registry
}

// describe returns the description of a metric, in the agent's name space.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("psidecar_"+name, help, labels, nil)
}

// The metrics. Label values are bounded: jobs, workers and servers by the
// observer's limits, pairs by maxPairs, the rest by lists in the source.
var (
	buildInfo     = describe("build_info", "Always 1; the label is the version.", "version")
	jobAccesses   = describe("key_accesses_total", "Keys in pull and push requests, by worker.", "job", "worker", "kind")
	jobValueBytes = describe("value_bytes_total", "Bytes of values pulled and pushed, by worker.", "job", "worker", "kind")
	workerBytes   = describe("worker_bytes_total", "Bytes of whole messages from (out) and to (in) a worker.", "job", "worker", "direction")
	serverBytes   = describe("server_bytes_total", "Bytes of whole messages from (out) and to (in) a server.", "job", "server", "direction")
	pairBytes     = describe("pair_bytes_total", "Bytes of whole messages between a worker and a server; for jobs of up to 1024 pairs.", "job", "worker", "server")
	requests      = describe("requests_total", "Requests of a worker, without retransmissions.", "job", "worker")
	steps         = describe("steps_total", "Rounds of pushes, or of pulls for workers that push nothing.", "job", "worker")
	stragglers    = describe("stragglers", "Workers that make less than four fifths of the median worker's steps.", "job")
	jobBytes      = describe("bytes_total", "Bytes of all messages of the job sent by this host.", "job")
	leftHost      = describe("left_host_bytes_total", "Bytes of messages that left this host.", "job")
	repeated      = describe("repeated_bytes_total", "Bytes of messages retransmitted by PS_RESEND.", "job")
	duration      = describe("request_duration_seconds", "Time from a request to its answer.", "job")
	distinctKeys  = describe("distinct_keys", "Distinct keys used; an estimate if exact is 0.", "job")
	alphaOf       = describe("alpha", "Average share of the job's parameter values that a worker on this host uses per step, weighted by bytes.", "job")
	exact         = describe("exact", "1 while every key is counted individually.", "job")
	sketchBound   = describe("sketch_bound", "Maximum error by which an estimated key count may be too high.", "job")
	connections   = describe("connections", "Connections of the job: synced, unsynced, unplaced.", "job", "state")
	missedBytes   = describe("missed_bytes", "Bytes that passed on open connections before their messages were recognized.", "job")
	events        = describe("capture_events_total", "Events that the capture saw, ignored and lost, by reason.", "reason", "class")
	eventBytes    = describe("capture_bytes_total", "Bytes that the capture saw, ignored and lost, by reason.", "reason", "class")
	podInfo       = describe("pod_info", "Always 1, for each node of a job that runs in a pod on this host, described by the labels.", "job", "name", "role", "rank", "namespace", "pod", "node")
	programRuns   = describe("program_runs_total", "Runs of a BPF program.", "program")
	programTime   = describe("program_seconds_total", "Run time of a BPF program.", "program")
	samplingOneIn = describe("sampling_one_in", "Sampling rate: keys of one in this many requests are inspected.")
	jobState      = describe("job_state", "1 for the job's current state: starting, running, stalled or over.", "job", "state")
	jobStalled    = describe("job_stalled_seconds", "Time since any worker of the job made progress; 0 while one does.", "job")
	stalledSecs   = describe("stalled_seconds", "Stall duration of a node or pair of nodes, for the 64 longest stalls.", "job", "kind", "who", "on")
	jobCause      = describe("job_held_up", "1 for the node or pair of nodes that causes the job's stall.", "job", "cause")
	samplingCost  = describe("sampling_cpu_percent", "CPU time that watching takes, in the kernel and in the agent, in percent of one core; over the last seconds.")
	samplingOver  = describe("sampling_over_budget", "1 while that exceeds --cpu-budget although as little is inspected as can be.")
	samplingRest  = describe("sampling_rest_of", "Busy connections are watched one part in this many of the time; 1: always.")
	jobOneIn      = describe("job_sampling_one_in", "Sampling rate of the job: keys of one in this many requests are inspected.", "job")
	keyRequests   = describe("key_requests_total", "Requests with keys: all, and those whose keys were inspected.", "job", "kind")
	plannerUp     = describe("planner_connected", "1 while the planner accepts reports.")
	plannerSent   = describe("planner_reports_total", "Reports accepted by the planner.")
	plannerGiven  = describe("planner_reports_skipped_total", "Reports dropped in favor of a newer one.")
)

// metricBlocks is the number of blocks for a job's alpha: a scrape must be cheap.
const metricBlocks = 16

// collector derives the metrics from the agent's state at each scrape, so that a job that is
// gone leaves no series.
type collector struct{ agent *Agent }

// Describe implements prometheus.Collector. It announces nothing, because the metrics depend on
// the jobs (an unchecked collector).
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	s := sender{out}
	me := c.agent.Agent()
	s.gauge(buildInfo, 1, me.Version)
	s.gauge(samplingOneIn, float64(me.Sampling.OneIn))
	s.gauge(samplingCost, me.Sampling.CostPercent)
	s.gauge(samplingRest, float64(max(me.Sampling.RestOf, 1)))
	s.gauge(samplingOver, oneIf(me.Sampling.OverBudget))
	for _, p := range me.Programs {
		s.count(programRuns, float64(p.Runs), p.Name)
		s.count(programTime, p.Seconds, p.Name)
	}
	for _, r := range me.Counters {
		s.count(events, float64(r.Events), r.Reason, r.Class)
		s.count(eventBytes, float64(r.Bytes), r.Reason, r.Class)
	}
	if p := me.Planner; p != nil {
		s.gauge(plannerUp, oneIf(p.Connected))
		s.count(plannerSent, float64(p.Reports))
		s.count(plannerGiven, float64(p.Skipped))
	}
	for _, v := range c.agent.observer.Jobs() {
		// Runs of a name share one series, which the newest run has; its counters start over.
		if name := v.Job.Scheduler.String(); c.agent.shows(name) && c.agent.called.title(name).Current {
			s.job(c.agent, &v)
		}
	}
}

// oneIf returns a condition as the value of a gauge.
func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// sender sends metrics to a scrape.
type sender struct{ out chan<- prometheus.Metric }

// count sends a counter.
func (s sender) count(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// gauge sends a gauge.
func (s sender) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// job sends all metrics of a job.
func (s sender) job(a *Agent, v *observe.JobView) {
	name := a.called.title(v.Job.Scheduler.String()).Name
	j := a.job(v)
	s.count(jobBytes, float64(j.Bytes), name)
	s.count(leftHost, float64(j.LeftHostBytes), name)
	s.count(repeated, float64(v.Job.Sums.Totals().Repeated), name)
	s.gauge(distinctKeys, float64(j.DistinctKeys), name)
	// No series while no worker has used anything, rather than one of 0, which would mean a
	// very sparse job.
	if alpha, err := page.AlphaOf(a, j.Name, metricBlocks, nil); err == nil && alpha.Workers > 0 {
		s.gauge(alphaOf, alpha.Alpha, name)
	}
	s.gauge(exact, oneIf(j.Exact), name)
	s.gauge(sketchBound, float64(v.Job.Sums.Table.Bound()), name)
	s.stalls(name, &j)
	s.measures(name, &j)
	s.gauge(jobOneIn, float64(j.Sampling.OneIn), name)
	s.count(keyRequests, float64(j.Sampling.Requests), name, "all")
	s.count(keyRequests, float64(j.Sampling.Sampled), name, "sampled")
	s.gauge(stragglers, float64(len(j.Stragglers)), name)
	s.gauge(missedBytes, float64(j.Connections.Missed), name)
	for state, n := range map[string]int{
		"synced": j.Connections.Synced, "unsynced": j.Connections.Unsynced, "unplaced": j.Connections.Unplaced,
	} {
		s.gauge(connections, float64(n), name, state)
	}
	for _, n := range j.Nodes {
		if p := n.PodName; p != nil {
			s.gauge(podInfo, 1, name, n.Name, n.Role, strconv.Itoa(n.Rank), p.Namespace, p.Name, p.Node)
		}
	}
	s.durations(name, v)
	s.workersAndServers(name, v)
	sums := v.Job.Sums.Table.Workers()
	for w, worker := range v.WorkersByIndex {
		if worker == "" || w >= len(sums) {
			continue
		}
		s.count(jobAccesses, float64(sums[w][counts.Pulls]), name, worker, "pull")
		s.count(jobAccesses, float64(sums[w][counts.Pushes]), name, worker, "push")
		s.count(jobValueBytes, float64(sums[w][counts.PulledBytes]), name, worker, "pull")
		s.count(jobValueBytes, float64(sums[w][counts.PushedBytes]), name, worker, "push")
	}
}

// durations sends the latency of all requests as a histogram, with buckets at powers of two
// from 64 microseconds to 67 seconds.
func (s sender) durations(name string, v *observe.JobView) {
	h := v.Job.Sums.All().Latency.Histogram()
	buckets := map[float64]uint64{}
	next, below := int64(64), uint64(0)
	for _, bar := range h.Distribution() {
		// Bars are narrower than buckets, so a bar belongs to the first bucket that ends above
		// it.
		for next < 1<<26 && bar.From > next {
			buckets[float64(next)/1e6] = below
			next *= 2
		}
		below += uint64(bar.Count)
	}
	for ; next <= 1<<26; next *= 2 {
		buckets[float64(next)/1e6] = below
	}
	n := uint64(h.TotalCount())
	// The sum is the mean times the count, since the distribution keeps no sum.
	s.out <- prometheus.MustNewConstHistogram(duration, n, h.Mean()/1e6*float64(n), buckets, name)
}

// workersAndServers sends traffic and steps by node, and by pair if there are few.
func (s sender) workersAndServers(name string, v *observe.JobView) {
	all := v.Job.Sums.All()
	// Sums of servers are gathered on the way, so that the matrix is walked once.
	in, out := make([]uint64, len(v.ServersByIndex)), make([]uint64, len(v.ServersByIndex))
	for w, worker := range v.WorkersByIndex {
		if worker == "" {
			continue
		}
		var up, down, asked uint64
		for i, server := range v.ServersByIndex {
			p := pairOf(&all, w, i)
			up, down, asked = up+p.ToServer, down+p.ToWorker, asked+p.Requests
			in[i], out[i] = in[i]+p.ToServer, out[i]+p.ToWorker
			if server != "" && len(v.WorkersByIndex)*len(v.ServersByIndex) <= maxPairs {
				s.count(pairBytes, float64(p.ToServer+p.ToWorker), name, worker, server)
			}
		}
		s.count(workerBytes, float64(up), name, worker, "out")
		s.count(workerBytes, float64(down), name, worker, "in")
		s.count(requests, float64(asked), name, worker)
		if w < len(all.Steps) {
			s.count(steps, float64(all.Steps[w]), name, worker)
		}
	}
	for i, server := range v.ServersByIndex {
		if server != "" {
			s.count(serverBytes, float64(in[i]), name, server, "in")
			s.count(serverBytes, float64(out[i]), name, server, "out")
		}
	}
}

// stalls sends the state of the job and its stalled nodes.
func (s sender) stalls(name string, j *page.Job) {
	if j.State == "" {
		return // not known yet
	}
	for _, state := range []string{page.Starting, page.Running, page.Stalled, page.Over} {
		s.gauge(jobState, oneIf(j.State == state), name, state)
	}
	stalled := 0.0
	if j.State == page.Stalled {
		stalled = time.Since(j.Since).Seconds()
	}
	s.gauge(jobStalled, stalled, name)
	if j.Cause != "" {
		s.gauge(jobCause, 1, name, j.Cause)
	}
	seen := map[[3]string]bool{}
	for _, st := range j.Stalls { // the longest of each first
		if key := [3]string{st.Kind, st.Who, st.On}; !seen[key] {
			seen[key] = true
			s.gauge(stalledSecs, st.Seconds, name, st.Kind, st.Who, st.On)
		}
	}
}

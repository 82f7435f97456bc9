package proxy

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/psidecar/psidecar/internal/reason"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/relay"
)

// State is the answer of /api/v1/connections. Field names in JSON are stable.
type State struct {
	Instance    string            `json:"instance"`
	Stopping    bool              `json:"stopping"`
	Carried     uint64            `json:"carried"` // connections so far
	Errors      map[string]uint64 `json:"errors"`  // by reason, so far
	Connections []ConnectionState `json:"connections"`
	Measures    []measure.Line    `json:"measures"`         // by job: which hold, and why others do not
	Values      *ValuesState      `json:"values,omitempty"` // with a codec for values
	Jobs        []jobs.State      `json:"jobs,omitempty"`   // whose requests are routed
	Guard       *GuardState       `json:"guard,omitempty"`  // where requests are routed
	// StateFolder is the folder with what the next proxy must know; nil where no requests are
	// routed.
	StateFolder *jobs.FolderState `json:"state_folder,omitempty"`
	Shared      *shared.Counts    `json:"shared,omitempty"`    // where a codec sends values once to several processes of a host
	Aggregate   *aggregate.Counts `json:"aggregate,omitempty"` // with --aggregate host
	Kept        *KeptState        `json:"kept,omitempty"`      // with --outlive
	Passed      *PassState        `json:"passed,omitempty"`    // connections that were handed over in order
	// Load has the last trial whether the job is faster without encoding, as this host's processors
	// are busy; nil: with --codec auto there was none yet.
	Load    *payoff.LoadFigures `json:"load,omitempty"`
	Refused map[string]uint64   `json:"refused,omitempty"` // claims of processes and proxies that were not believed, by kind
}

// ConnectionState describes one connection.
type ConnectionState struct {
	ID          uint64 `json:"id"`
	Kind        string `json:"kind"` // link, direct, accepted
	Client      string `json:"client"`
	Destination string `json:"destination"`
	Peer        string `json:"peer,omitempty"` // the other proxy's instance
	Codec       string `json:"codec,omitempty"`
	Past        string `json:"past,omitempty"` // why a direct one bypasses the mesh
	// Unread is set for a connection whose messages no codec reads, so that they pass as they
	// are: it is the fork of PS-lite that they are of, or "unknown".
	Unread string    `json:"unread,omitempty"`
	Since  time.Time `json:"since"`
	ToFar  Direction `json:"to_far"` // away from the job's process on this host
	ToJob  Direction `json:"to_job"`
	Payoff *Payoff   `json:"payoff,omitempty"` // with --codec auto, once it is known
}

// unreadUnknown is the value of Unread for messages of an unknown writer.
const unreadUnknown = "unknown"

// Payoff has the decision whether to encode a connection's messages (--codec auto), and its
// reasons: what a message saves on the link, and what encoding and decoding it cost.
type Payoff struct {
	Encodes      bool    `json:"encodes"`
	SavesSeconds float64 `json:"saves_seconds"`
	CostsSeconds float64 `json:"costs_seconds"`
	Switches     uint64  `json:"switches"` // number of changes of the decision
}

// Direction describes one direction of a connection: JobBytes are those exchanged with the
// job's process, FarBytes those with the other proxy or the destination.
type Direction struct {
	JobBytes     uint64  `json:"job_bytes"`
	FarBytes     uint64  `json:"far_bytes"`
	Messages     uint64  `json:"messages"`
	Encoded      uint64  `json:"encoded"`
	CodecSeconds float64 `json:"codec_seconds"`
	// SharedBytes, included in FarBytes, went over a connection that all links to a host
	// share. SparedBytes were not sent at all, since another link had brought them.
	SharedBytes uint64 `json:"shared_bytes,omitempty"`
	SparedBytes uint64 `json:"spared_bytes,omitempty"`
}

// State returns the current state.
func (p *Proxy) State() State {
	s := State{Instance: p.String(), Stopping: p.conns.stopping.Load(), Errors: map[string]uint64{}, Connections: []ConnectionState{}, Measures: p.Measures(), Values: p.valuesState(), Shared: p.sharedState(), Aggregate: p.aggregateState(), Kept: p.kept.state(), Passed: p.passes.state(), Load: p.load.Figures()}
	// One snapshot for all figures, so that they agree.
	sums := p.conns.sums()
	for r, n := range sums.errors {
		s.Errors[string(r)] = n
	}
	for _, n := range sums.total {
		s.Carried += n
	}
	if p.opts.Jobs != nil {
		s.Jobs = p.opts.Jobs.States()
		folder := p.opts.Jobs.Folder()
		s.StateFolder = &folder
		s.Refused = p.opts.Jobs.Refused()
	}
	if p.opts.Guard != nil {
		guarded := p.opts.Guard.State()
		s.Guard = &guarded
	}
	for _, c := range p.conns.openConnections() {
		s.Connections = append(s.Connections, c.state())
	}
	return s
}

// state returns the connection's state.
func (c *connection) state() ConnectionState {
	job, far := kernelState(c.pipe.Job), kernelState(c.pipe.Far)
	s := ConnectionState{
		ID: c.id, Kind: string(c.kind), Client: c.client.String(), Destination: c.destination.String(), Codec: c.codec, Past: c.past, Since: c.started,
		ToFar: direction(c.pipe.ToFar.Counts()), ToJob: direction(c.pipe.ToJob.Counts()),
	}
	// Only the direction from the process is judged; the other end judges its own.
	if sent := c.pipe.ToFar.Counts(); sent.Unread {
		s.Unread = cmp.Or(sent.Fork.String(), unreadUnknown)
	}
	if m := c.pipe.Payoff; m != nil {
		if f := m.Figures(); f != nil {
			s.Payoff = &Payoff{f.Encodes && !m.Load.Passes(), f.Saves.Seconds(), f.Costs.Seconds(), f.Switches}
		}
	}
	if c.kind != kindDirect {
		// An instance is shown as its proxy shows itself.
		s.Peer = (&Proxy{instance: c.peerName}).String()
	}
	// The kernel knows how much went through also where it is spliced.
	s.ToFar.JobBytes, s.ToFar.FarBytes = job.received, far.sent
	s.ToJob.JobBytes, s.ToJob.FarBytes = job.sent, far.received
	// They went over the shared lane, and not over this link's socket.
	s.ToFar.FarBytes += s.ToFar.SharedBytes
	return s
}

// Carried returns how many bytes of jobs went over links with a codec to other hosts, and how many
// were sent in their place.
func (p *Proxy) Carried() (job, far uint64) {
	sums := p.conns.sums()
	for codec, f := range sums.flows {
		if codec != "" {
			job, far = job+f.toFar.In, far+f.toFar.Out+f.toFar.Lane
		}
	}
	f := sums.within.toFar
	return job - f.In, far - f.Out - f.Lane
}

// direction returns the part of a direction's state that the relay knows.
func direction(c relay.FlowCounts) Direction {
	return Direction{Messages: c.Messages, Encoded: c.Encoded, CodecSeconds: float64(c.CodecNanos) / 1e9, SharedBytes: c.Lane, SparedBytes: c.Spared}
}

// Handler serves /api/v1/connections, /api/v1/codecs, /metrics (with the metrics of more
// collectors), /healthz and /readyz. It is read-only.
func (p *Proxy) Handler(more ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(more...)
	registry.MustRegister(p, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", p.opts.Health)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		// Not ready from the beginning of Drain, while connections are still carried.
		if p.conns.stopping.Load() {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /api/v1/codecs", p.getCodecs)
	mux.HandleFunc("GET /api/v1/connections", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(p.State()); err != nil {
			p.log.Debug("answering /api/v1/connections", "error", err)
		}
	})
	return mux
}

// ControlHandler serves what changes the proxy, and what costs it time: PUT /api/v1/codecs
// and GET /api/v1/codecs/advice. It does not authenticate callers; the server that mounts it
// does.
func (p *Proxy) ControlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/codecs", p.getCodecs)
	mux.HandleFunc("PUT /api/v1/codecs", p.putCodecs)
	mux.HandleFunc("GET /api/v1/codecs/advice", p.getAdvice)
	return mux
}

var (
	descOpen    = prometheus.NewDesc("psidecar_proxy_connections", "Open connections.", []string{"kind"}, nil)
	descTotal   = prometheus.NewDesc("psidecar_proxy_connections_total", "Connections carried.", []string{"kind"}, nil)
	descErrors  = prometheus.NewDesc("psidecar_proxy_errors_total", "Connections that failed or were refused, by reason.", []string{"reason"}, nil)
	descRefused = prometheus.NewDesc("psidecar_proxy_refused_claims_total", "Rejected claims of processes and other proxies about jobs: table (node table not from the job's scheduler), scheduler (process is not that scheduler), node (connection in the name of a node elsewhere), letter (of a site, not from its host), run (letter of another run, dropped), site (too many links of a host), job (too many jobs or nodes).", []string{"claim"}, nil)
	descPast    = prometheus.NewDesc("psidecar_proxy_past_mesh_total", "Direct connections for which a link to a proxy was wanted, by reason: no_proxy, not_configured (links need TLS or --insecure), or the reason why the link failed.", []string{"reason"}, nil)
	descWaits   = prometheus.NewDesc("psidecar_proxy_awaited_total", "Connections that waited for the mesh port of a new host, by whether it opened within --peer-patience.", []string{"opened"}, nil)
	descGuarded = prometheus.NewDesc("psidecar_proxy_guard_cgroups", "Cgroups of jobs with displaced keys: closed (connects fail while there is no proxy) or pending (a change is not in effect yet).", []string{"state"}, nil)
	descGuardNo = prometheus.NewDesc("psidecar_proxy_guard_failures_total", "Failed attempts to make a cgroup fail closed, or to reopen it.", nil, nil)
	descBytes   = prometheus.NewDesc("psidecar_proxy_bytes_total", "Bytes to and from the far side, as seen by the job (side job) and on the link (side far); spliced connections are counted when they end.", []string{"codec", "direction", "side"}, nil)
	descMessage = prometheus.NewDesc("psidecar_proxy_messages_total", "Messages on connections with a codec, encoded or unmodified.", []string{"codec", "direction", "form"}, nil)
	descUnheld  = prometheus.NewDesc("psidecar_proxy_unheld_messages_total", "Messages not encoded because the memory limit was reached.", []string{"codec"}, nil)
	descLedgers = prometheus.NewDesc("psidecar_proxy_ledger_bytes", "Bytes of ledgers in the state directory.", nil, nil)
	descDamaged = prometheus.NewDesc("psidecar_proxy_state_damaged_total", "Damaged files and directories in the state directory that were set aside.", nil, nil)
	descLost    = prometheus.NewDesc("psidecar_proxy_state_lost_jobs", "Damaged directories of jobs with unknown names: connections of workers of unknown jobs fail.", nil, nil)
	descStray   = prometheus.NewDesc("psidecar_proxy_stray_answers_total", "Answers to proxies' requests that arrived for workers of unknown jobs and were dropped.", nil, nil)
	descMissing = prometheus.NewDesc("psidecar_proxy_lost_messages_total", "Messages of routers (parts of requests, merged answers, requests that waited) that were dropped, by reason: full (too many wait for a connection, and the job fails; with PS_RESEND also for the worker to read, and they come again), over (the job is over here, or another run began), restarted (their worker was restarted).", []string{"reason"}, nil)
	descLetters = prometheus.NewDesc("psidecar_proxy_dropped_letters_total", "Messages between proxies about moves that were dropped; what matters is repeated. Reasons: full (too many wait for the link), link (it could not be made, or broke), address (the host has none in the node table), stopping (this proxy ends, or starts); received: job (not routed here), host (not in the node table), holds (too many keys are held), state (the state directory is not writable, or requests are refused).", []string{"reason"}, nil)
	descNoStore = prometheus.NewDesc("psidecar_proxy_store_lost_jobs", "Jobs whose key owners the planner's store does not know, because it was lost or is an old copy.", nil, nil)
	descTrouble = prometheus.NewDesc("psidecar_proxy_state_trouble_jobs", "Jobs that would not survive a kill of the proxy because the state directory is not writable, or whose requests are refused because their saved state is lost.", nil, nil)
	descExpires = prometheus.NewDesc("psidecar_proxy_certificate_expiry_timestamp_seconds", "When the certificate in use expires, in Unix seconds. Replaced files are read by the next scrape.", nil, nil)
	descSeconds = prometheus.NewDesc("psidecar_proxy_codec_seconds_total", "Time spent in the codec, estimated from one message in 16.", []string{"codec", "direction"}, nil)
)

// Describe implements prometheus.Collector. Every desc of Collect must be listed.
func (p *Proxy) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descOpen, descTotal, descErrors, descRefused, descPast, descWaits, descGuarded, descGuardNo, descBytes, descMessage, descUnheld, descExpires, descSeconds, descLedgers, descDamaged, descLost, descStray, descMissing, descLetters, descTrouble, descNoStore, descValueBytes, descValues, descValueEvents, descValueState, descMeasure, descMeasureNot, descKept, descTaken, descEnded, descPassed, descDrained, descShared, descSharedHeld, descSharedPlain, descAggregate, descAggregateSpared, descAggregateHeld, descAggregatePassed} {
		out <- d
	}
}

// collectFolder sends the metrics of the state folder.
func (p *Proxy) collectFolder(out chan<- prometheus.Metric) {
	if p.opts.Jobs == nil {
		return
	}
	f, trouble, noStore := p.opts.Jobs.Folder(), 0, 0
	for _, s := range p.opts.Jobs.States() {
		if s.Trouble != "" {
			trouble++
		}
		if s.LostStore != "" {
			noStore++
		}
	}
	out <- prometheus.MustNewConstMetric(descNoStore, prometheus.GaugeValue, float64(noStore))
	out <- prometheus.MustNewConstMetric(descLedgers, prometheus.GaugeValue, float64(f.LedgerBytes))
	out <- prometheus.MustNewConstMetric(descDamaged, prometheus.CounterValue, float64(f.Damaged))
	out <- prometheus.MustNewConstMetric(descLost, prometheus.GaugeValue, float64(len(f.Lost)))
	out <- prometheus.MustNewConstMetric(descStray, prometheus.CounterValue, float64(f.StrayAnswers))
	out <- prometheus.MustNewConstMetric(descTrouble, prometheus.GaugeValue, float64(trouble))
	for why, n := range p.opts.Jobs.LostMessages() {
		out <- prometheus.MustNewConstMetric(descMissing, prometheus.CounterValue, float64(n), why)
	}
	for why, n := range p.opts.Jobs.DroppedLetters() {
		out <- prometheus.MustNewConstMetric(descLetters, prometheus.CounterValue, float64(n), why)
	}
}

// Collect implements prometheus.Collector. It reads counters that exist anyway; nothing is
// counted twice for metrics.
func (p *Proxy) Collect(out chan<- prometheus.Metric) {
	p.collectValues(out)
	p.collectShared(out)
	p.collectAggregate(out)
	p.collectFolder(out)
	p.collectMeasures(out)
	p.kept.collect(out)
	p.passes.collect(out)
	s := p.conns.sums()
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for _, k := range kinds {
		out <- prometheus.MustNewConstMetric(descOpen, prometheus.GaugeValue, float64(s.open[k]), string(k))
		counter(descTotal, float64(s.total[k]), string(k))
	}
	if p.opts.Jobs != nil {
		for what, n := range p.opts.Jobs.Refused() {
			counter(descRefused, float64(n), what)
		}
	}
	// All reasons, so that a rate over one that has not occurred yet is 0 and not absent.
	for _, r := range reason.All {
		counter(descErrors, float64(s.errors[r]), string(r))
	}
	for why, n := range s.past {
		counter(descPast, float64(n), why)
	}
	for _, opened := range []bool{true, false} {
		counter(descWaits, float64(s.waits[opened]), strconv.FormatBool(opened))
	}
	if p.opts.Guard != nil {
		guarded := p.opts.Guard.State()
		out <- prometheus.MustNewConstMetric(descGuarded, prometheus.GaugeValue, float64(guarded.Closed), "closed")
		out <- prometheus.MustNewConstMetric(descGuarded, prometheus.GaugeValue, float64(guarded.Pending), "pending")
		counter(descGuardNo, float64(guarded.Failed))
	}
	if p.opts.TLS != nil {
		out <- prometheus.MustNewConstMetric(descExpires, prometheus.GaugeValue, float64(p.opts.TLS.Expires().Unix()))
	}
	for codec, f := range s.flows {
		// Connections without a codec.
		if codec == "" {
			codec = "none"
		}
		counter(descBytes, float64(f.toFar.In), codec, "to_far", "job")
		counter(descBytes, float64(f.toFar.Out+f.toFar.Lane), codec, "to_far", "far")
		counter(descBytes, float64(f.toJob.In), codec, "to_job", "far")
		counter(descBytes, float64(f.toJob.Out), codec, "to_job", "job")
		for name, c := range map[string]relay.FlowCounts{"to_far": f.toFar, "to_job": f.toJob} {
			counter(descMessage, float64(c.Encoded), codec, name, "encoded")
			counter(descMessage, float64(c.Messages-c.Encoded), codec, name, "plain")
			counter(descSeconds, float64(c.CodecNanos)/1e9, codec, name)
		}
		counter(descUnheld, float64(f.toFar.Unheld), codec)
	}
}

package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/proxy/codec/values"
)

// ValuesState is the answer of /api/v1/codecs: the rules for values, and what came of them.
type ValuesState struct {
	Rules   []values.Rule `json:"rules"`
	Waiting int           `json:"waiting"` // values held back
	values.Counts
}

// valuesState returns the state; nil without a codec for values.
func (p *Proxy) valuesState() *ValuesState {
	if p.opts.Values == nil {
		return nil
	}
	s := &ValuesState{Rules: p.opts.Values.Rules(), Waiting: p.opts.Values.StillWaiting(), Counts: p.opts.Values.Counts()}
	// An empty list in JSON, not null.
	if s.Rules == nil {
		s.Rules = []values.Rule{}
	}
	return s
}

// restoreEvery is the period at which the file of the previous proxy is looked for: that
// proxy may end after this one has begun.
const restoreEvery = time.Second

// restoreValues takes up what the previous proxy held back of pushes, until ctx ends.
func (p *Proxy) restoreValues(ctx context.Context) {
	if p.opts.Values == nil || p.opts.ValuesFile == "" {
		return
	}
	look := time.NewTicker(restoreEvery)
	defer look.Stop()
	for {
		p.restoreOnce()
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// restoreOnce takes up what is in the file by now.
func (p *Proxy) restoreOnce() {
	if p.opts.Values == nil || p.opts.ValuesFile == "" {
		return
	}
	// Restore removes the file first, so that what it has cannot be taken up twice.
	streams, err := p.opts.Values.Restore(p.opts.ValuesFile)
	p.restoreMu.Lock()
	defer p.restoreMu.Unlock()
	// Logged once for each error, since this is tried every second.
	if err != nil && err.Error() != p.restoring {
		p.restoring = err.Error()
		p.log.Error("thresholded pushes", "error", err)
	}
	if streams > 0 {
		p.log.Info("restored the residuals of the previous proxy", "pairs_of_worker_and_server", streams)
	}
}

// saveValues writes what is held back of pushes for the next proxy. All connections must have
// ended.
func (p *Proxy) saveValues() {
	if p.opts.Values == nil {
		return
	}
	path, failed := p.opts.ValuesFile, error(nil)
	// A folder that cannot be made shows in Save's error.
	if path != "" {
		failed = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	streams, err := p.opts.Values.Save(path)
	switch {
	case err != nil:
		p.log.Error("residuals are lost with this proxy; set --state-dir to a writable directory",
			"file", path, "pairs_of_worker_and_server", streams, "error", errors.Join(err, failed))
	case streams > 0:
		p.log.Info("residuals are saved for the next proxy", "file", path, "pairs_of_worker_and_server", streams)
	}
}

// LastPush is called when the host's agent has seen a worker of this host tell its scheduler,
// on a connection that bypasses this proxy, that it pushes no more. What is held back of its
// pushes has to go now.
func (p *Proxy) LastPush(ctx context.Context, job string, node int32) {
	if p.opts.Values != nil {
		p.opts.Values.EndPast(ctx, job, node)
	}
}

// getCodecs answers with the ValuesState.
func (p *Proxy) getCodecs(w http.ResponseWriter, _ *http.Request) {
	state := p.valuesState()
	if state == nil {
		http.Error(w, "this proxy has no codec for values; see --codec", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(state); err != nil {
		p.log.Debug("answering /api/v1/codecs", "error", err)
	}
}

// putCodecs replaces the rules by those in the body, a JSON list.
func (p *Proxy) putCodecs(w http.ResponseWriter, r *http.Request) {
	if p.opts.Values == nil {
		http.Error(w, "this proxy has no codec for values; see --codec", http.StatusNotFound)
		return
	}
	// All rules are checked before any takes effect.
	rules, err := values.ParseRules(r.Body)
	if err == nil {
		err = p.opts.Values.SetRules(rules)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.log.Info("codec rules changed", "rules", len(rules))
	p.getCodecs(w, r)
}

var (
	descValueBytes  = prometheus.NewDesc("psidecar_proxy_value_bytes_total", "Bytes of pushed and pulled values with a rule, as seen by the job (side job) and on links (side far), by codec.", []string{"form", "side"}, nil)
	descValues      = prometheus.NewDesc("psidecar_proxy_values_total", "Pushed and pulled values with a rule, all and those sent.", []string{"form", "which"}, nil)
	descValueEvents = prometheus.NewDesc("psidecar_proxy_value_events_total", "Layers or messages that passed unmodified, and other events of the codecs for values, by reason.", []string{"reason"}, nil)
	descValueState  = prometheus.NewDesc("psidecar_proxy_value_state_bytes", "Memory for residuals and remembered values, limited by --codec-memory.", nil, nil)
)

// collectValues sends metrics of the codec for values.
func (p *Proxy) collectValues(out chan<- prometheus.Metric) {
	if p.opts.Values == nil {
		return
	}
	c := p.opts.Values.Counts()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, f := range c.Forms {
		counter(descValueBytes, f.Bytes, f.Form, "job")
		counter(descValueBytes, f.Encoded, f.Form, "far")
		counter(descValues, f.Values, f.Form, "all")
		counter(descValues, f.Sent, f.Form, "sent")
	}
	for _, r := range values.Reasons {
		counter(descValueEvents, c.Reasons[r], string(r))
	}
	out <- prometheus.MustNewConstMetric(descValueState, prometheus.GaugeValue, float64(c.StateBytes))
}

package daemon

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/agent/counts"
)

// ExportQueueLength is how many slow requests wait at most to be sent.
const ExportQueueLength = 2048

// ExporterOptions of an exporter.
type ExporterOptions struct {
	// Endpoint is the collector's URL, such as http://collector:4317; empty: as
	// OTEL_EXPORTER_OTLP_ENDPOINT and its like say.
	Endpoint string
	Version  string // of psidecar
	Host     string
}

// An ExportedRequest is one that took long.
type ExportedRequest struct {
	Job netip.AddrPort // its scheduler
	counts.Slow
}

// SpanNames are what a request's job and nodes are called; empty: it is not known.
type SpanNames struct{ Job, Run, Worker, Server string }

// Exporter sends what it is offered. Offer and Collect may be called by any goroutine;
// Run once.
type Exporter struct {
	opts  ExporterOptions
	queue chan ExportedRequest

	sent, failed  atomic.Uint64 // spans
	full, ended   atomic.Uint64 // requests
	metricsFailed atomic.Uint64 // exports
	told          atomic.Int64  // when an error was logged last, in nanoseconds since 1970
}

// endpoints are the variables that say where to send.
var endpoints = []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"}

// protocols are those that say how.
var protocols = []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"}

// ExportEnabled reports whether anything is to be sent: an endpoint is given, as a flag or in
// the environment, and OTEL_SDK_DISABLED is not true.
func ExportEnabled(endpoint string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	for _, name := range endpoints {
		endpoint = cmp.Or(endpoint, os.Getenv(name))
	}
	return endpoint != ""
}

// NewExporter returns an exporter that has connected to nobody yet. Endpoints that are none, in
// options or environment, are errors.
func NewExporter(o ExporterOptions) (*Exporter, error) {
	if err := checkURL("--otlp-endpoint", o.Endpoint); err != nil {
		return nil, err
	}
	for _, name := range endpoints {
		if err := checkURL(name, os.Getenv(name)); err != nil {
			return nil, err
		}
	}
	for _, name := range protocols {
		if p := os.Getenv(name); p != "" && p != "grpc" {
			return nil, fmt.Errorf("%s=%s: only grpc is spoken; set it to grpc, and the endpoint to the collector's gRPC port, usually 4317", name, p)
		}
	}
	return &Exporter{opts: o, queue: make(chan ExportedRequest, ExportQueueLength)}, nil
}

func checkURL(name, endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		return fmt.Errorf("%s %q: want http://HOST:PORT of a collector's gRPC port, or https:// for TLS", name, endpoint)
	}
	return nil
}

// Offer takes a slow request, or drops it where too many wait. It never blocks.
func (e *Exporter) Offer(r ExportedRequest) {
	select {
	case e.queue <- r:
	default:
		e.full.Add(1)
	}
}

var (
	descSent    = prometheus.NewDesc("psidecar_otlp_spans_total", "Slow requests that the collector has taken as spans.", nil, nil)
	descDropped = prometheus.NewDesc("psidecar_otlp_dropped_total", "What was not exported: queue_full, slow requests beyond those that can wait; spans_failed, spans that the collector did not take; ended, slow requests that waited at the end; metrics_failed, times that it did not take the metrics.", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (e *Exporter) Describe(out chan<- *prometheus.Desc) {
	out <- descSent
	out <- descDropped
}

// Collect implements prometheus.Collector.
func (e *Exporter) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(descSent, prometheus.CounterValue, float64(e.sent.Load()))
	for reason, n := range map[string]*atomic.Uint64{"queue_full": &e.full, "spans_failed": &e.failed, "ended": &e.ended, "metrics_failed": &e.metricsFailed} {
		out <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(n.Load()), reason)
	}
}

// logEvery is how often it is logged, at most, that the collector does not take what
// it is sent.
const logEvery = time.Minute

func (e *Exporter) noteError(err error) {
	now, last := time.Now().UnixNano(), e.told.Load()
	if err != nil && now-last > int64(logEvery) && e.told.CompareAndSwap(last, now) {
		slog.Warn("OpenTelemetry's collector does not take what it is sent; jobs and the agent's page do not depend on it", "error", err)
	}
}

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

// ExportQueueLength bounds the slow requests that wait to be sent. More are dropped and
// counted.
const ExportQueueLength = 2048

// ExporterOptions configure an Exporter.
type ExporterOptions struct {
	// Endpoint is the collector's URL, such as http://collector:4317; empty: the
	// OTEL_EXPORTER_OTLP_*ENDPOINT variables decide.
	Endpoint string
	Version  string // of psidecar
	Host     string
}

// An ExportedRequest is a slow request and the scheduler of its job.
type ExportedRequest struct {
	Job netip.AddrPort // its scheduler
	counts.Slow
}

// SpanNames are the names of a request's job and nodes; empty where unknown.
type SpanNames struct{ Job, Run, Worker, Server string }

// An Exporter sends slow requests and metrics to a collector. Offer and Collect may be called
// from any goroutine; Run once.
type Exporter struct {
	opts  ExporterOptions
	queue chan ExportedRequest

	sent, failed  atomic.Uint64 // spans
	full, ended   atomic.Uint64 // requests dropped because the queue was full, or because Run ended
	metricsFailed atomic.Uint64 // exports that failed
	told          atomic.Int64  // when an error was last logged, in nanoseconds since 1970
}

// endpoints are the variables with the collector's address.
var endpoints = []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"}

// protocols are the variables with the protocol.
var protocols = []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"}

// ExportEnabled reports whether anything is to be exported: an endpoint is given by flag or
// environment, and OTEL_SDK_DISABLED is not true.
func ExportEnabled(endpoint string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	for _, name := range endpoints {
		endpoint = cmp.Or(endpoint, os.Getenv(name))
	}
	return endpoint != ""
}

// NewExporter checks the options and the OTEL_ variables and returns an exporter that has not
// connected yet. The SDK itself would ignore an invalid URL or protocol with no more than a log
// line.
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

// Offer queues a slow request, or drops it if the queue is full. It never blocks.
func (e *Exporter) Offer(r ExportedRequest) {
	select {
	case e.queue <- r:
	default:
		e.full.Add(1)
	}
}

var (
	descSent    = prometheus.NewDesc("psidecar_otlp_spans_total", "Slow requests exported to the collector as spans.", nil, nil)
	descDropped = prometheus.NewDesc("psidecar_otlp_dropped_total", "Exports that were dropped or failed: queue_full (slow requests beyond the queue limit), spans_failed (spans rejected by the collector), ended (slow requests queued at exit), metrics_failed (failed exports of metrics).", []string{"reason"}, nil)
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

// logEvery is the least interval between log lines about a collector that refuses data.
const logEvery = time.Minute

// noteError logs an error, at most once in logEvery. Concurrent callers race for the right to
// log by CompareAndSwap.
func (e *Exporter) noteError(err error) {
	now, last := time.Now().UnixNano(), e.told.Load()
	if err != nil && now-last > int64(logEvery) && e.told.CompareAndSwap(last, now) {
		slog.Warn("cannot export to the OpenTelemetry collector; jobs and the agent's page are not affected", "error", err)
	}
}

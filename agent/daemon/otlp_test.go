package daemon

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/agent/counts"
)

// collector is what takes spans and metrics, as OpenTelemetry's collector does.
type collector struct {
	tracepb.UnimplementedTraceServiceServer
	blocked chan struct{} // nil: it takes all; else nothing until that is closed

	mu       sync.Mutex // guards the rest
	spans    []*spanpb.Span
	resource []*commonpb.KeyValue
	metrics  []string
}

type metricsCollector struct {
	metricspb.UnimplementedMetricsServiceServer
	c *collector
}

func (c *collector) Export(ctx context.Context, r *tracepb.ExportTraceServiceRequest) (*tracepb.ExportTraceServiceResponse, error) {
	if c.blocked != nil {
		select {
		case <-c.blocked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.ResourceSpans {
		c.resource = of.Resource.Attributes
		for _, s := range of.ScopeSpans {
			c.spans = append(c.spans, s.Spans...)
		}
	}
	return &tracepb.ExportTraceServiceResponse{}, nil
}

func (m metricsCollector) Export(_ context.Context, r *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	for _, of := range r.ResourceMetrics {
		for _, s := range of.ScopeMetrics {
			for _, metric := range s.Metrics {
				m.c.metrics = append(m.c.metrics, metric.Name)
			}
		}
	}
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

// servers are the names of the servers of the spans that came.
func (c *collector) servers() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		names = append(names, attributes(s.Attributes)["psidecar.server"])
	}
	return names
}

func attributes(list []*commonpb.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range list {
		all[a.Key] = a.Value.GetStringValue()
	}
	return all
}

// serve serves a collector at an address until stop is called.
func serve(t *testing.T, c *collector, address string) (at string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	tracepb.RegisterTraceServiceServer(s, c)
	metricspb.RegisterMetricsServiceServer(s, metricsCollector{c: c})
	go func() { _ = s.Serve(listener) }() // its end is stop
	t.Cleanup(s.Stop)
	return listener.Addr().String(), s.Stop
}

// start runs an exporter until stop is called, which waits for its end.
func start(t *testing.T, address string) (e *Exporter, stop func()) {
	t.Helper()
	e, err := NewExporter(ExporterOptions{Endpoint: "http://" + address, Version: "v1", Host: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(e)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- e.Run(ctx, registry, func(r ExportedRequest) SpanNames {
			return SpanNames{Job: "ads/ctr", Run: "7", Worker: "worker0", Server: string(rune('a' + r.Server))}
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return e, stop
}

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("for two minutes it did not come that %s", what)
		}
	}
}

// TestSlowRequestBecomesSpan: a span has the times of the request and its answer, and
// what they were; metrics of the registry come with the last export at the latest.
func TestSlowRequestBecomesSpan(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "cluster=a")
	c := &collector{}
	address, _ := serve(t, c, "127.0.0.1:0")
	e, stop := start(t, address)
	e.Offer(ExportedRequest{netip.MustParseAddrPort("10.0.0.1:8000"), counts.Slow{Server: 1, Asked: 1_000_000_000, Answered: 1_250_000_000, Push: true, Keys: 5, Bytes: 60}})
	await(t, "the span was taken", func() bool { return len(c.servers()) == 1 })
	stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.spans[0]
	if s.Name != "push" || s.StartTimeUnixNano != 1_000_000_000 || s.EndTimeUnixNano != 1_250_000_000 || s.Kind != spanpb.Span_SPAN_KIND_CLIENT {
		t.Errorf("the span is %v", s)
	}
	got := attributes(s.Attributes)
	for name, want := range map[string]string{"job": "ads/ctr", "run": "7", "worker": "worker0", "server": "b", "kind": "push"} {
		if got["psidecar."+name] != want {
			t.Errorf("%s is %q, want %q", name, got["psidecar."+name], want)
		}
	}
	for name, want := range map[string]int64{"psidecar.keys": 5, "psidecar.bytes": 60} {
		if i := slices.IndexFunc(s.Attributes, func(a *commonpb.KeyValue) bool { return a.Key == name }); i < 0 || s.Attributes[i].Value.GetIntValue() != want {
			t.Errorf("%s is not %d in %v", name, want, s.Attributes)
		}
	}
	about := attributes(c.resource)
	for name, want := range map[string]string{"service.name": "psidecar-agent", "service.version": "v1", "host.name": "node-1", "cluster": "a"} {
		if about[name] != want {
			t.Errorf("the resource's %s is %q, want %q", name, about[name], want)
		}
	}
	if !slices.Contains(c.metrics, "psidecar_otlp_spans_total") {
		t.Errorf("metrics %q", c.metrics)
	}
}

// TestCollectorGoesAway: while there is none spans are dropped and counted; once there
// is one again they come.
func TestCollectorGoesAway(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
	first, second := &collector{}, &collector{}
	address, away := serve(t, first, "127.0.0.1:0")
	e, _ := start(t, address)
	e.Offer(ExportedRequest{Slow: counts.Slow{Server: 0}})
	await(t, "the span was taken", func() bool { return e.sent.Load() == 1 })
	away()
	e.Offer(ExportedRequest{Slow: counts.Slow{Server: 1}})
	await(t, "a span was dropped", func() bool { return e.failed.Load() == 1 })
	serve(t, second, address)
	await(t, "spans were taken again", func() bool { e.Offer(ExportedRequest{Slow: counts.Slow{Server: 2}}); return len(second.servers()) > 0 })
	if got := second.servers(); slices.Contains(got, "b") {
		t.Errorf("what was dropped came all the same: %q", got)
	}
}

// TestCollectorThatHangs: the queue never exceeds its bound, and every request is sent
// or counted as dropped, by reason.
func TestCollectorThatHangs(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")
	c := &collector{blocked: make(chan struct{})}
	t.Cleanup(func() { close(c.blocked) })
	address, _ := serve(t, c, "127.0.0.1:0")
	e, stop := start(t, address)
	const offered = 20 * ExportQueueLength
	for range offered {
		e.Offer(ExportedRequest{})
	}
	if waits := len(e.queue); waits > ExportQueueLength || cap(e.queue) != ExportQueueLength {
		t.Errorf("%d wait, at most %d are to", waits, ExportQueueLength)
	}
	if full := e.full.Load(); full == 0 {
		t.Error("nothing was dropped")
	}
	stop()
	if sum := e.sent.Load() + e.failed.Load() + e.full.Load() + e.ended.Load(); sum != offered || e.sent.Load() != 0 {
		t.Errorf("%d sent, %d failed, %d found the queue full, %d waited at the end: %d in all, of %d", e.sent.Load(), e.failed.Load(), e.full.Load(), e.ended.Load(), sum, offered)
	}
}

// TestOfferWithoutRun: Offer does not block where nobody takes.
func TestOfferWithoutRun(t *testing.T) {
	e, err := NewExporter(ExporterOptions{Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for range ExportQueueLength + 100 {
		e.Offer(ExportedRequest{})
	}
	if e.full.Load() != 100 {
		t.Errorf("%d were dropped, want 100", e.full.Load())
	}
}

// TestEndpoints: an invalid endpoint is refused with a remedy, in a flag and in the
// environment; nothing is exported where nobody asks for it.
func TestEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name, flag string
		variables  map[string]string
		enabled    bool
		wrong      string
	}{
		{"nothing", "", nil, false, ""},
		{"a URL", "http://collector:4317", nil, true, ""},
		{"TLS", "https://collector:4317/", nil, true, ""},
		{"the environment", "", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, true, ""},
		{"spans alone", "", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"}, true, ""},
		{"disabled", "http://collector:4317", map[string]string{"OTEL_SDK_DISABLED": "true"}, false, ""},
		{"no scheme", "collector:4317", nil, true, "--otlp-endpoint"},
		{"another scheme", "grpc://collector:4317", nil, true, "http://HOST:PORT"},
		{"no host", "http://", nil, true, "http://HOST:PORT"},
		{"HTTP's path", "http://collector:4318/v1/traces", nil, true, "gRPC port"},
		{"rubbish", "::\x00", nil, true, "--otlp-endpoint"},
		{"rubbish in the environment", "", map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "collector"}, true, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"},
		{"another protocol", "http://collector:4317", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, true, "only grpc"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range slices.Concat(endpoints, protocols, []string{"OTEL_SDK_DISABLED"}) {
				t.Setenv(name, tc.variables[name])
			}
			if got := ExportEnabled(tc.flag); got != tc.enabled {
				t.Errorf("enabled: %v, want %v", got, tc.enabled)
			}
			_, err := NewExporter(ExporterOptions{Endpoint: tc.flag})
			if (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%v, want %q", err, tc.wrong)
			}
		})
	}
}

package daemon

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
)

const (
	// batchLength bounds the spans of one export, batchEvery how long the first of them waits
	// for others.
	batchLength, batchEvery = 512, time.Second
	// endWithin is how long Run goes on sending after its context has ended.
	endWithin = 2 * time.Second
)

// Run sends offered requests and the gatherer's metrics until ctx ends, and up to 2 s longer
// for what is queued. names resolves the names of a request's job and nodes, and is called from
// one goroutine. It sets the process's OpenTelemetry error handler. Errors come from invalid
// variables only; a collector that fails is logged and retried.
func (e *Exporter) Run(ctx context.Context, gatherer prometheus.Gatherer, names func(ExportedRequest) SpanNames) error {
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "psidecar-agent"), attribute.String("service.version", e.opts.Version), attribute.String("host.name", e.opts.Host)),
		resource.WithFromEnv()) // later sources override earlier ones
	if err != nil {
		return fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(e.noteError))
	sending, stop := context.WithCancel(context.WithoutCancel(ctx)) // ends some time after ctx, so that the last batch can be sent
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(endWithin, stop) })()
	defer e.giveUp()
	var metrics *metric.MeterProvider
	if os.Getenv("OTEL_METRICS_EXPORTER") != "none" {
		if metrics, err = e.openMetrics(ctx, about, gatherer); err != nil {
			return err
		}
	}
	if os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		e.discard(ctx)
	} else if err := e.sendSpans(ctx, sending, about, names); err != nil {
		return err
	}
	if metrics != nil {
		e.noteError(metrics.Shutdown(sending))
	}
	return nil
}

// discard drains the queue until ctx ends, when traces are switched off.
func (e *Exporter) discard(ctx context.Context) {
	for {
		select {
		case <-e.queue:
		case <-ctx.Done():
			return
		}
	}
}

// giveUp counts what is still queued at the end.
func (e *Exporter) giveUp() {
	for {
		select {
		case <-e.queue:
			e.ended.Add(1)
		default:
			return
		}
	}
}

// openMetrics returns a provider that exports the gatherer's metrics periodically, at the SDK's
// interval (OTEL_METRIC_EXPORT_INTERVAL), in goroutines of its own until it is shut down.
func (e *Exporter) openMetrics(ctx context.Context, about *resource.Resource, gatherer prometheus.Gatherer) (*metric.MeterProvider, error) {
	var with []otlpmetricgrpc.Option
	if e.opts.Endpoint != "" {
		with = append(with, otlpmetricgrpc.WithEndpointURL(e.opts.Endpoint))
	}
	exporter, err := otlpmetricgrpc.New(ctx, with...)
	if err != nil {
		return nil, fmt.Errorf("exporting metrics: %w", err)
	}
	reader := metric.NewPeriodicReader(countingMetrics{exporter, e}, metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(gatherer))))
	return metric.NewMeterProvider(metric.WithResource(about), metric.WithReader(reader)), nil
}

// countingMetrics counts failed exports.
type countingMetrics struct {
	metric.Exporter
	of *Exporter
}

func (c countingMetrics) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	err := c.Exporter.Export(ctx, m)
	if err != nil {
		c.of.metricsFailed.Add(1)
	}
	return err
}

// batch is a span processor that collects ended spans. The SDK's own batch processor does not
// say how many spans failed. It is used by one goroutine.
type batch struct{ spans []trace.ReadOnlySpan }

func (b *batch) OnStart(context.Context, trace.ReadWriteSpan) {}
func (b *batch) OnEnd(s trace.ReadOnlySpan)                   { b.spans = append(b.spans, s) }
func (b *batch) Shutdown(context.Context) error               { return nil }
func (b *batch) ForceFlush(context.Context) error             { return nil }

// sendSpans turns offered requests into spans and exports them until ctx ends, then the rest of
// the queue until sending ends. While an export runs, requests wait in the queue, which bounds
// the memory that a slow collector can cost.
func (e *Exporter) sendSpans(ctx, sending context.Context, about *resource.Resource, names func(ExportedRequest) SpanNames) error {
	var with []otlptracegrpc.Option
	if e.opts.Endpoint != "" {
		with = append(with, otlptracegrpc.WithEndpointURL(e.opts.Endpoint))
	}
	exporter, err := otlptracegrpc.New(ctx, with...)
	if err != nil {
		return fmt.Errorf("exporting spans: %w", err)
	}
	var b batch
	tracer := trace.NewTracerProvider(trace.WithResource(about), trace.WithSampler(trace.AlwaysSample()), trace.WithSpanProcessor(&b)).Tracer("psidecar")
	for ctx.Err() == nil {
		e.fill(ctx, &b, tracer, names)
		e.send(sending, exporter, &b)
	}
	// ctx has ended: fill no longer waits, and what is queued goes out in full batches.
	for len(e.queue) > 0 && sending.Err() == nil {
		e.fill(ctx, &b, tracer, names)
		e.send(sending, exporter, &b)
	}
	e.noteError(exporter.Shutdown(sending))
	return nil
}

// fill fills a batch. It blocks until the batch is full, batchEvery has passed since its first
// span, or ctx has ended and the queue is empty.
func (e *Exporter) fill(ctx context.Context, b *batch, tracer api.Tracer, names func(ExportedRequest) SpanNames) {
	var late <-chan time.Time
	for len(b.spans) < batchLength {
		select {
		case r := <-e.queue:
			makeSpan(tracer, r, names(r))
			continue
		default:
		}
		if late == nil && len(b.spans) > 0 {
			timer := time.NewTimer(batchEvery)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case r := <-e.queue:
			makeSpan(tracer, r, names(r))
		case <-late:
			return
		case <-ctx.Done():
			return
		}
	}
}

// send exports a batch and empties it. Spans that the collector does not take are counted and
// dropped: retrying is the exporter's task, within its own time limit.
func (e *Exporter) send(ctx context.Context, to trace.SpanExporter, b *batch) {
	if len(b.spans) == 0 {
		return
	}
	if err := to.ExportSpans(ctx, b.spans); err != nil {
		e.failed.Add(uint64(len(b.spans)))
		e.noteError(err)
	} else {
		e.sent.Add(uint64(len(b.spans)))
	}
	clear(b.spans)
	b.spans = b.spans[:0]
}

// makeSpan starts and ends a span with the times of the request, which hands it to the batch.
func makeSpan(tracer api.Tracer, r ExportedRequest, n SpanNames) {
	kind := "other"
	switch {
	case r.Push && r.Pull:
		kind = "pushpull"
	case r.Push:
		kind = "push"
	case r.Pull:
		kind = "pull"
	}
	_, span := tracer.Start(context.Background(), kind, api.WithSpanKind(api.SpanKindClient), api.WithTimestamp(time.Unix(0, r.Asked)), api.WithAttributes(
		attribute.String("psidecar.job", n.Job), attribute.String("psidecar.run", n.Run),
		attribute.String("psidecar.worker", n.Worker), attribute.String("psidecar.server", n.Server),
		attribute.String("psidecar.kind", kind), attribute.Int64("psidecar.keys", int64(r.Keys)), attribute.Int64("psidecar.bytes", int64(r.Bytes)),
	))
	span.End(api.WithTimestamp(time.Unix(0, r.Answered)))
}

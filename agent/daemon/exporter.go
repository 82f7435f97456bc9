package daemon

import (
	"context"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/internal/cli"
)

// ExportSettings are the flags of the exporter.
type ExportSettings struct {
	Endpoint string        // URL; empty: the OTEL_ variables decide
	Slow     time.Duration // requests that take this long or longer become spans
}

// Open returns an exporter to which the agent of these options will offer its slow requests, or
// nil if exporting is off. Errors in settings are [cli.UsageError]s.
func (f *ExportSettings) Open(opts *agent.Options) (*Exporter, error) {
	if !ExportEnabled(f.Endpoint) {
		return nil, nil
	}
	if f.Slow <= 0 {
		return nil, cli.Usagef("--otlp-slow %v: want a time above 0, such as 100ms", f.Slow)
	}
	e, err := NewExporter(ExporterOptions{Endpoint: f.Endpoint, Version: opts.Version, Host: opts.Host})
	if err != nil {
		return nil, cli.UsageError{Err: err}
	}
	opts.Locality.SlowAfter = f.Slow
	opts.Slow = func(scheduler netip.AddrPort, s counts.Slow) {
		e.Offer(ExportedRequest{Job: scheduler, Slow: s})
	}
	opts.Collectors = append(opts.Collectors, e)
	return e, nil
}

// runExporter runs an exporter on an agent's data until ctx ends; without one it returns nil at
// once. Errors come from invalid environment variables only.
func runExporter(ctx context.Context, e *Exporter, a *agent.Agent) error {
	if e == nil {
		return nil
	}
	names := a.NewSlowNames()
	return e.Run(ctx, a.Gatherer(), func(r ExportedRequest) (n SpanNames) {
		n.Job, n.Run, n.Worker, n.Server = names.Of(r.Job, r.Worker, r.Server)
		return n
	})
}

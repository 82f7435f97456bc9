package daemon

import (
	"context"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/internal/cli"
)

// ExportSettings say what goes to a collector of OpenTelemetry, and where that is.
type ExportSettings struct {
	Endpoint string        // URL; empty: as the environment says
	Slow     time.Duration // what requests take that are sent as spans
}

// Open has the agent offer its slow requests to an exporter; nil: nothing is sent.
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

// runExporter sends what an agent has until ctx ends; nil: there is nothing to do. An
// error is one of the environment's variables.
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

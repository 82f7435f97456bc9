package main

import (
	"context"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/locality"
	"github.com/psidecar/psidecar/agent/otlp"
	"github.com/psidecar/psidecar/internal/cli"
)

// otlpFlags are those of what goes to a collector of OpenTelemetry.
type otlpFlags struct {
	endpoint string
	slow     time.Duration
}

func (f *otlpFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.endpoint, "otlp-endpoint", "", "URL of an OpenTelemetry collector's gRPC port, such as http://collector:4317, to which metrics and slow requests, as spans, are sent; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says, and where that is not set nothing is sent")
	cmd.Flags().DurationVar(&f.slow, "otlp-slow", 100*time.Millisecond, "requests whose answers take that long or longer are sent as spans")
}

// open has the agent offer its slow requests to an exporter; nil: nothing is sent.
func (f *otlpFlags) open(opts *agent.Options) (*otlp.Exporter, error) {
	if !otlp.Enabled(f.endpoint) {
		return nil, nil
	}
	if f.slow <= 0 {
		return nil, cli.Usagef("--otlp-slow %v: want a time above 0, such as 100ms", f.slow)
	}
	e, err := otlp.New(otlp.Options{Endpoint: f.endpoint, Version: opts.Version, Host: opts.Host})
	if err != nil {
		return nil, cli.UsageError{Err: err}
	}
	opts.Locality.SlowAfter = f.slow
	opts.Slow = func(scheduler netip.AddrPort, s locality.Slow) {
		e.Offer(otlp.Request{Job: scheduler, Slow: s})
	}
	opts.Collectors = append(opts.Collectors, e)
	return e, nil
}

// runExporter sends what an agent has until ctx ends; nil: there is nothing to do. An
// error is one of the environment's variables.
func runExporter(ctx context.Context, e *otlp.Exporter, a *agent.Agent) error {
	if e == nil {
		return nil
	}
	names := a.NewSlowNames()
	return e.Run(ctx, a.Gatherer(), func(r otlp.Request) (n otlp.Names) {
		n.Job, n.Run, n.Worker, n.Server = names.Of(r.Job, r.Worker, r.Server)
		return n
	})
}

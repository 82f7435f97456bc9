// Package daemon is an agent with what goes with it on a host: the interception of
// jobs' connects, for the host's proxy, the names of its pods, and reports to a
// planner.
//
// [Intercept] loads the redirecting programs, [New] opens the agent, and
// [Daemon.Run] runs all of it until its context ends, in which order it leaves
// nothing in the kernel. psidecar agent and psidecar up run one.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/otlp"
	"github.com/psidecar/psidecar/agent/pods"
	"github.com/psidecar/psidecar/agent/report"
	"github.com/psidecar/psidecar/internal/mark"
)

// Options of a daemon.
type Options struct {
	Agent agent.Options
	// Interception is the daemon's from New on, whatever comes of it; nil: nothing is
	// redirected.
	Interception *Interception
	// Pods are kept up to date while the daemon runs; nil: pods are not asked for.
	Pods *pods.Pods
	// Planner is the host:port of the planner to report to; empty: none.
	Planner     string
	Credentials credentials.TransportCredentials // for the planner
	// Exporter sends metrics and slow requests to a collector; nil: nothing is sent.
	Exporter *otlp.Exporter
}

// A Daemon is an agent about to run.
type Daemon struct {
	opts  Options
	agent *agent.Agent
}

// New opens an agent.
func New(o Options) (*Daemon, error) {
	if o.Interception != nil {
		o.Interception.tellAgent(&o.Agent)
	}
	a, err := agent.New(o.Agent)
	if err != nil {
		err = fmt.Errorf("%w (psidecar doctor tells what is missing)", err)
		return nil, errors.Join(err, o.Interception.Abandon())
	}
	return &Daemon{o, a}, nil
}

// Agent returns the agent, whose page may be served while Run runs.
func (d *Daemon) Agent() *agent.Agent { return d.agent }

// Run watches until ctx ends, and reports to the planner where there is one. The
// interception's tables go last: the agent asks them where connections go until
// it has read all that the kernel copied.
func (d *Daemon) Run(ctx context.Context) (err error) {
	i := d.opts.Interception
	var own uint32
	if i != nil {
		defer func() { err = errors.Join(err, i.close()) }()
		if own, err = i.Mark(); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.agent.Run(ctx) })
	g.Go(func() error { return runExporter(ctx, d.opts.Exporter, d.agent) })
	if i != nil {
		g.Go(func() error { return i.serveProxies(ctx, d.agent, d.opts.Agent) })
	}
	if d.opts.Pods != nil {
		g.Go(func() error { return d.opts.Pods.Run(ctx) })
	}
	if d.opts.Planner != "" {
		link := report.New(d.opts.Planner, d.opts.Agent.Host, d.opts.Credentials, d.agent.HostReport, d.agent.Urgent, mark.GRPC(int(own), slog.Default())...)
		link.Names(d.agent.SettleNames)
		d.agent.SetPlanner(link.State)
		g.Go(func() error { return link.Run(ctx) })
	}
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Package daemon runs an agent together with what belongs to it on a host: the interception of
// jobs' connects for the host's proxy, the names of its pods, and reports to a planner.
// psidecar agent and psidecar up run one.
//
// [Intercept] loads the redirecting programs, [New] opens the agent, and [Daemon.Run] runs
// everything until its context ends, in an order that leaves nothing in the kernel. The
// Settings types translate command-line flags into options.
//
// # Adoption
//
// An [Adopter] moves connections to the host's proxy, and away from it. By default connects are
// not redirected while links are fast; [usage.limits] says when a link is slow, and the proxy when
// a connection gains nothing by it. A connection that was made before the proxy started, or while
// it was away, stays direct until it breaks, or with --adopt is moved too. [Adopter.Run] ends such
// connections one by one, each at a moment at which no byte is lost ([ending]). PS-lite's nodes
// reconnect by themselves, and those connects go where the adopter wants them.
//
// [AdopterOptions] supply what the agent knows of connections, processes and proxies; the
// kernel is asked for the rest; [decide], a pure function, judges. It needs CAP_SYS_PTRACE and,
// for other network namespaces, CAP_SYS_ADMIN.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/report"
	"github.com/psidecar/psidecar/internal/dial"
)

// Options of a daemon.
type Options struct {
	Agent agent.Options
	// Interception is owned by the daemon from New on, also if New fails; nil: nothing is
	// redirected.
	Interception *Interception
	// Pods are kept up to date while the daemon runs; nil: without Kubernetes.
	Pods *discover.Pods
	// Planner is the host:port of the planner to report to; empty: none.
	Planner     string
	Credentials credentials.TransportCredentials // for the planner
}

// A Daemon is an agent that is ready to run. Run may be called once.
type Daemon struct {
	opts  Options
	agent *agent.Agent
}

// New opens an agent: its programs are loaded, and nothing is attached to a job's cgroup by it
// yet. After an error, everything is released, the interception included.
func New(o Options) (*Daemon, error) {
	if o.Interception != nil {
		o.Interception.tellAgent(&o.Agent)
	}
	a, err := agent.New(o.Agent)
	if err != nil {
		err = fmt.Errorf("%w (psidecar doctor reports what is missing)", err)
		return nil, errors.Join(err, o.Interception.Abandon())
	}
	return &Daemon{o, a}, nil
}

// Agent returns the agent, whose page may be served while Run runs.
func (d *Daemon) Agent() *agent.Agent { return d.agent }

// Run watches, intercepts and reports until ctx ends or a part fails, and returns nil if only
// ctx ended. The interception is closed last: until the agent has read every record that the
// kernel copied, it asks the interception's tables where connections go.
func (d *Daemon) Run(ctx context.Context) (err error) {
	i := d.opts.Interception
	var own uint32
	if i != nil {
		// Deferred first, so that it runs when every goroutine below has ended.
		defer func() { err = errors.Join(err, i.close()) }()
		if own, err = i.Mark(); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.agent.Run(ctx) })
	if i != nil {
		g.Go(func() error { return i.serveProxies(ctx, d.agent, d.opts.Agent) })
	}
	if d.opts.Pods != nil {
		g.Go(func() error { return d.opts.Pods.Run(ctx) })
	}
	if d.opts.Planner != "" {
		// Marked, so that the connection to the planner is never redirected to the proxy.
		link := report.New(d.opts.Planner, d.opts.Agent.Host, d.opts.Credentials, d.agent.HostReport, d.agent.Urgent, dial.MarkGRPC(int(own), slog.Default())...)
		link.Names(d.agent.SettleNames)
		link.Pace(d.agent.PaceReports())
		d.agent.SetPlanner(link.State)
		g.Go(func() error { return link.Run(ctx) })
	}
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

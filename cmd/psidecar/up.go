package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	agentdaemon "github.com/psidecar/psidecar/agent/daemon"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner"
	proxydaemon "github.com/psidecar/psidecar/proxy/daemon"
)

// upFlags are the flags of all parts. Flags with the same name and meaning in psidecar up are
// added by the watching, relaying and planning functions of each part; only those that a
// process of all parts names otherwise, or has once, are added here.
type upFlags struct {
	agent   agentFlags
	proxy   proxyFlags
	planner plannerFlags
}

// newUpCommand returns psidecar up, which runs until it gets a signal or a part fails. It needs
// root as an agent does.
func newUpCommand(e env) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run agent, proxy and planner in one process",
		Long: `Watch the PS-lite jobs of this host and carry their connections in fewer bytes:
agent, proxy and planner in one process. Start it on every host of a job, before
the job or while it runs; on all hosts but one, set --planner to the first one's
address and port 9811. Links between hosts, and the planner, need certificates,
which one command makes for all hosts:

  psidecar certs --out certs --role agent,proxy,planner --host first-host --host second-host

Copy certs/HOST to HOST. In trusted networks --insecure does without. With either,
the planner listens on all addresses unless --planner-listen says otherwise.
Without both, connections to other hosts go direct, and the planner serves only
this host.

--http serves the page, the API and the metrics of agent and proxy;
--planner-http serves those of the planner, which shows all hosts. With
--intercept=false the process is not in the data path. SIGTERM starts a graceful
shutdown: new connections go direct, those in use get --grace, and nothing is
left behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.proxy.applySave(cmd.Flags()), f.reach(cmd.Flags())); err != nil {
				return err
			}
			e.carries()
			e.log.StartBuffering()
			return runUp(cmd.Context(), &f, e.log)
		},
	}
	f.agent.watching(cmd)
	f.agent.showing(cmd)
	addIntercepting(cmd, &f.agent.intercept, true)
	addPods(cmd, &f.agent.pods)
	f.proxy.relaying(cmd)
	f.planner.planning(cmd, "planner-")
	f.agent.planner.addFlags(cmd, "", "host:port of the planner on another host (default: an embedded planner)")
	return cmd
}

// reach makes one set of certificates enough: what --tls-cert, --tls-key and --tls-ca name serves
// the planner's connections too, unless those have their own. With it, or without certificates
// but with --insecure, a planner is there for other hosts as well.
func (f *upFlags) reach(flags *pflag.FlagSet) error {
	own := identity.Files{CA: f.proxy.TLS.CA, Cert: f.proxy.TLS.Cert, Key: f.proxy.TLS.Key}
	if f.agent.planner.Files == (identity.Files{}) && f.agent.planner.Address != "" {
		f.agent.planner.Files = own
	}
	if f.planner.tls == (identity.Files{}) {
		f.planner.tls = own
	}
	if !flags.Changed("planner-listen") && (f.proxy.Insecure || f.planner.tls.Cert != "") {
		_, port, err := net.SplitHostPort(f.planner.Listen)
		f.planner.Listen = net.JoinHostPort("", port)
		return err
	}
	return nil
}

// runUp opens all parts and runs them, until ctx ends or one fails. The metrics of log are served
// beside those of agent and proxy.
func runUp(ctx context.Context, f *upFlags, log prometheus.Collector) error {
	var ports cli.Ports
	defer ports.Close()
	h, err := openHost(ctx, f, &ports, log)
	if err != nil {
		return err
	}
	err = h.run(ctx)
	slog.Info("ended", "connections", h.proxy.Proxy().State().Carried, "in_order", err == nil)
	return err
}

// host is all parts in one process, about to run. Parts reach each other by function calls
// where there are any, and otherwise as on one host: the proxy gets its listeners through a
// socket pair, and agent and proxy call the planner through its listener.
type host struct {
	agent *agentdaemon.Daemon
	// interception is the agent's; nil: nothing is intercepted.
	interception *agentdaemon.Interception
	proxy        *proxydaemon.Daemon
	planner      *planner.Planner // nil: it is on another host
	front        page.Server
	pprof        bool
	followFile   func(context.Context) // the rules for values of the file of --config
	health       *health.Loops         // of all parts
	orders       *control.Server
	control      string // unix socket for orders; empty: none
}

// openHost opens all parts, in an order in which each finds what it depends on:
//
//   - Agent and proxy share this process's memory limit, health loops and page, which come
//     first.
//   - A planner of its own is opened before those who call it, since a listener at port 0 has
//     an address only then.
//   - The interception is opened as late as possible, as its programs stay in the kernel. From
//     there on every error abandons it.
//   - The proxy needs the interception's mark, and the agent, last, needs the proxy's figures.
//
// Listeners are closed with ports.
func openHost(ctx context.Context, f *upFlags, ports *cli.Ports, log prometheus.Collector) (*host, error) {
	h := &host{pprof: f.agent.pprof, health: &health.Loops{}}
	address := f.agent.planner.Address
	watch, err := f.agent.Options(version)
	if err != nil {
		return nil, err
	}
	watch.Health = h.health
	// There is always a planner here, its own or another host's.
	agentdaemon.ShareWindows(&watch)
	carry, err := f.proxy.Options()
	if err != nil {
		return nil, err
	}
	carry.Health = h.health
	h.followFile = func(ctx context.Context) { f.proxy.Values.Follow(ctx, carry.Values) }
	// Both bounds are of this one process.
	debug.SetMemoryLimit(f.agent.MemoryLimit() + carry.MemoryBytes)
	if h.front, err = page.OpenServer(ports.Listener(ctx), "--http", f.agent.http, f.agent.names...); err != nil {
		return nil, err
	}
	if address == "" {
		f.planner.called, f.planner.HTTPNames = watch.Names, f.agent.names
		// Both flags are there once, for proxy and planner.
		f.planner.Insecure, f.planner.Users = f.proxy.Insecure, f.proxy.users
		plan, err := f.planner.open(ctx, "--planner-", ports)
		if err != nil {
			return nil, err
		}
		plan.Health = h.health
		if h.planner, err = planner.New(ctx, plan); err != nil {
			return nil, err
		}
		address = reachable(plan.Reports.Addr())
		// The planner's certificate is what this process shows itself as a caller.
		f.agent.planner.Own = plan.Identity
	}
	creds, err := f.agent.planner.Credentials()
	if err != nil {
		return nil, err
	}
	named, err := f.agent.pods.Open(&watch)
	if err != nil {
		return nil, err
	}
	watch.Machine = f.agent.Machine(named)
	f.agent.intercept.Mesh = f.proxy.MeshPort
	if h.interception, err = f.agent.intercept.Open(); err != nil {
		return nil, err
	}
	if h.interception != nil && carry.Mark == 0 {
		// The proxy may share a cgroup with the job.
		mark, err := h.interception.Mark()
		if err != nil {
			return nil, errors.Join(err, h.interception.Abandon())
		}
		carry.Mark = int(mark)
	}
	// The proxy is the agent's host under the same name, and follows the same planner.
	f.proxy.planner, f.proxy.Routing.Host = f.agent.planner, f.agent.Host
	f.proxy.planner.Address = address
	f.proxy.reachPlanner()
	local := proxydaemon.Options{Proxy: carry}
	if h.interception != nil {
		local.Connect = h.interception.Connect
	}
	if h.proxy, err = f.proxy.Open(ctx, local, ports.Listener(ctx)); err != nil {
		return nil, errors.Join(err, h.interception.Abandon())
	}
	if h.interception != nil {
		h.interception.Own(h.proxy.Proxy().Owns)
	}
	// The cost of carrying must not count as the cost of watching.
	watch.WithProxy = true
	// In one process the page can say of each job which measures hold on how many connections.
	watch.Carried.Measures = h.proxy.Proxy().MeasuresOf
	watch.Saved = func() (job, far uint64, ok bool) {
		job, far = h.proxy.Proxy().Carried()
		return job, far, true
	}
	h.orders, h.control = control.NewServer(h.proxy.Proxy().ControlHandler(), f.proxy.users), f.proxy.controlPath()
	watch.Collectors = append(watch.Collectors, h.proxy.Proxy(), h.front.Guard, h.orders, log)
	h.agent, err = agentdaemon.New(agentdaemon.Options{Agent: watch, Interception: h.interception, Pods: named, Planner: address, Credentials: creds})
	return h, err
}

// reachable returns the address at which this host reaches a TCP listener of its own: loopback,
// if it listens at all addresses.
func reachable(a net.Addr) string {
	t := *a.(*net.TCPAddr)
	switch {
	case !t.IP.IsUnspecified():
	case t.IP.To4() != nil:
		t.IP = net.IPv4(127, 0, 0, 1)
	default:
		t.IP = net.IPv6loopback
	}
	return t.String()
}

// run runs all parts until ctx ends or one fails. Either way each part then ends in order, and
// run returns when all have.
func (h *host) run(ctx context.Context) error {
	// The proxy ends after --grace, and the agent needs the interception's tables until it has
	// read everything, so the parts end in their own time.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.health.Watch(ctx) })
	if h.planner != nil {
		g.Go(func() error { return h.planner.Run(ctx) })
	}
	g.Go(func() error { return h.agent.Run(ctx) })
	g.Go(func() error { return h.proxy.Run(ctx) })
	g.Go(func() error { h.followFile(ctx); return nil })
	g.Go(func() error { return h.front.Serve(ctx, h.handler()) })
	g.Go(func() error { return h.orders.ServeAt(ctx, h.control) })
	return g.Wait()
}

// handler returns the agent's handler, with the state of the proxy's connections and codecs
// added. The proxy's metrics are among the agent's collectors already.
func (h *host) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h.agent.Agent().Handler(h.pprof))
	mux.Handle("GET /api/v1/connections", h.proxy.Proxy().Handler())
	mux.Handle("GET /api/v1/codecs", h.proxy.Proxy().Handler())
	return mux
}

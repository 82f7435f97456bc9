package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// proxyFlags are the flags of psidecar proxy and of psidecar up, which has a proxy in it.
type proxyFlags struct {
	daemon.Settings
	save    string        // the intention, in a word; see applySave
	planner plannerLink   // whose rules and plans are followed; without an address: none
	http    string        // of state and metrics; empty: none
	names   []string      // for http
	socket  string        // where the agent hands over listeners; empty: none does
	replace bool          // wait until the proxy that runs has ended
	control string        // socket as given; see controlPath
	users   control.Users // who may use that
}

// relaying adds the flags of what is carried and how. psidecar proxy and up have them; flags
// for a proxy in a process of its own are added by [newProxyCommand].
func (f *proxyFlags) relaying(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.Forward, "forward", nil, "LISTEN=DEST: forward connections to host:port LISTEN to host:port DEST; may be repeated")
	flags.StringSliceVar(&f.Mesh, "mesh-listen", nil, "listen address for proxies on other hosts (default: --mesh-port on all addresses)")
	flags.Uint16Var(&f.MeshPort, "mesh-port", 9814, "port on which proxies on other hosts listen; 0: always connect directly")
	flags.StringVar(&f.save, "save", "", "what to send less of: none (relay only), lossless, or the share of each push to hold back until it adds up, such as 0.99, or auto: a share that rises as training goes on, to 0.99 at most (for servers that add or step by gradients) (default: as --codec and the other codec flags say)")
	flags.StringSliceVar(&f.Codecs, "codec", []string{daemon.AutoCodec}, "codec, if the peer proxy supports it: compact encodes all messages; auto encodes only where that makes the job faster: where it saves more time on the link than it takes; none disables encoding")
	flags.StringSliceVar(&f.Allow, "mesh-allow", nil, "additional CIDRs that other proxies may reach through this one, besides the address to which they connect")
	flags.StringSliceVar(&f.Ports, "mesh-ports", nil, "additional ports of this host (8000, 7000-7999, any) that other proxies may reach through this one, besides the listening ports of jobs that the agent finds; required without an intercepting agent")
	flags.StringVar(&f.TLS.Cert, "tls-cert", "", "PEM file with this proxy's certificate for links, reloaded when it changes")
	flags.StringVar(&f.TLS.Key, "tls-key", "", "PEM file with the private key of the certificate")
	flags.StringVar(&f.TLS.CA, "tls-ca", "", "PEM file with the CA certificates for peers")
	flags.StringSliceVar(&f.TLS.Peers, "tls-peer", nil, "patterns (*, ?, [a-z]) that the DNS names or URIs of peers' certificates must match; such certificates need no role (default: any certificate with the proxy role, see psidecar certs)")
	flags.BoolVar(&f.Insecure, "insecure", false, "allow links to and from other hosts without TLS; in psidecar up, also give everyone who can reach the planner full access")
	flags.StringVar(&f.control, "control-socket", controlSocket, "Unix socket over which root, this process's user and --admin-uid change codec rules and try codecs; relative to --state-dir unless absolute; empty: disabled")
	addUsers(cmd, &f.users)
	flags.BoolVar(&f.MeshOnly, "mesh-only", false, "refuse connections that would bypass the mesh because the peer has no proxy or no valid certificate, instead of connecting directly without TLS")
	flags.DurationVar(&f.Retry, "no-proxy-retry", 10*time.Second, "how long to wait before a host without a proxy is tried again")
	flags.DurationVar(&f.PeerGrace, "peer-grace", 3*time.Second, "how long connections wait for the proxy of a host that had one before they go direct")
	flags.DurationVar(&f.Patience, "peer-patience", time.Second, "how long the first connections to a host wait for its mesh port before they go direct; a pod's mesh port opens once the agent has found its job")
	flags.DurationVar(&f.Grace, "grace", 10*time.Second, "grace period for connections in use at shutdown")
	flags.IntVar(&f.Mark, "mark", 0, "SO_MARK on the proxy's own sockets, which exempts them from interception; needs CAP_NET_ADMIN; 0: none")
	flags.IntVar(&f.Connections, "max-connections", 16384, "maximum number of connections carried at a time")
	addRoutingFlags(cmd, &f.Routing)
	flags.Int64Var(&f.Memory, "proxy-memory", 1<<30, "memory limit in bytes for large messages during encoding, decoding and routing, and for codec state (at most half of it), all connections together")
	flags.StringVar(&f.Share, "share-pulls", daemon.ShareAuto, "send values that several workers of a host pull only once to that host, if both proxies support it: true, false, or auto, which disables it where answers are faster without, as on links as fast as memory; uses at most a quarter of --proxy-memory")
	// --share-pulls alone means true, as of a flag without values.
	flags.Lookup("share-pulls").NoOptDefVal = "true"
	flags.IntVar(&f.ShareLeast, "share-least", shared.Least, "minimum size in bytes of the values of a server's answer that --share-pulls sends once; a smaller one saves fewer bytes for the same processor time")
	flags.StringVar(&f.Aggregate, "aggregate", daemon.AggregateNone, "sum the pushes of this host's workers to a server before they leave, for servers that add each push immediately (--handler add, or detected with --allow-probe): host, while the links to the server are busy; auto, like host, but not for jobs whose pushes are answered faster without; asked, for jobs for which the planner (psidecar plan aggregate apply) or the owner (psidecar.io/aggregate, PSIDECAR_AGGREGATE) requests it; none")
	flags.DurationVar(&f.AggregateWait, "aggregate-wait", 0, "with --aggregate host, auto or asked: how long a push waits for those of the host's other workers")
	flags.IntVar(&f.AggregateLeast, "aggregate-least", aggregate.Least, "with --aggregate host, auto or asked: minimum size in bytes of values of pushes to a server that are summed; a smaller one saves fewer bytes for the same processor time")
	f.Values.Register(flags)
}

// newProxyCommand returns psidecar proxy, which runs until it gets a signal, is replaced or a
// part of it fails.
func newProxyCommand(e env) *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Carry this host's job connections and compress them",
		Long: `Carry the connections of this host's jobs to the proxies on their destination
hosts, encoded in fewer bytes, or directly to hosts without a proxy. This is
transparent to the job.

The proxy receives its listeners from the host's agent (psidecar agent
--intercept) over --proxy-socket; it needs no privileges. --forward sets explicit
listeners, for machines on which connections cannot be intercepted. --http serves
state (/api/v1/connections) and metrics (/metrics) and is read-only.
--control-socket accepts codec rules (PUT /api/v1/codecs) from authorized users
of this host. SIGTERM starts a graceful shutdown: connections in use get --grace.
SIGUSR2 starts a successor from the binary at the proxy's path, which takes over.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.applySave(cmd.Flags()); err != nil {
				return err
			}
			// Before anything is opened: it may execute the program anew.
			e.carries()
			e.log.StartBuffering()
			return runProxy(cmd.Context(), &f, e.log)
		},
	}
	f.relaying(cmd)
	f.planner.addFlags(cmd, "", "host:port of the planner to follow: its rules for values and sums (psidecar plan codecs, aggregate), which take precedence over flags and file, and with --act its plans")
	cmd.Flags().StringVar(&f.Routing.Host, "host", "", "name of this host at the planner; must match the agent's (default: the hostname)")
	cmd.Flags().BoolVar(&f.Outlive, "outlive", false, "let the agent hold duplicates of the job's connections, so that they survive a kill of this proxy, even without PS_RESEND; must be set on the proxies of all hosts; requires Linux 6.9 and --proxy-socket; excludes --act and --placement; see docs/troubleshooting.md for the cost and the exceptions")
	cmd.Flags().StringVar(&f.socket, "proxy-socket", daemon.DefaultSocket, "Unix socket over which the agent hands over listeners; empty: none")
	cmd.Flags().BoolVar(&f.replace, "replace", false, "replace the running proxy: wait until the agent has shut it down gracefully, and take over its connections; SIGUSR2 makes a running proxy start such a successor")
	addNames(cmd, &f.names)
	cmd.Flags().StringVar(&f.http, "http", "127.0.0.1:9813", "listen address for state and metrics; empty: disabled")
	return cmd
}

// runProxy runs a proxy alone in its process, and serves the metrics of log beside its own.
// SIGUSR2 is taken from before the wait for its turn, since by default the signal would end the
// process.
func runProxy(ctx context.Context, f *proxyFlags, log prometheus.Collector) error {
	cli.LimitMemory()
	switch {
	case f.Outlive && f.Routing.Wanted():
		return cli.Usagef("--outlive cannot be combined with --act or --placement: routed connections cannot be held; omit one of them")
	case f.Outlive && f.socket == "":
		return cli.Usagef("--outlive needs --proxy-socket: the agent there holds the connections")
	case f.replace && f.socket == "":
		return cli.Usagef("--replace requires --proxy-socket: the agent coordinates the replacement")
	}
	f.reachPlanner()
	opts, err := f.Options()
	if err != nil {
		return err
	}
	// Once for the process: carry may be tried several times.
	next := daemon.NewSuccessor()
	defer next.Close()
	carry := func() error {
		return f.carry(ctx, daemon.Options{Proxy: opts, Socket: f.socket, Outlive: f.Outlive}, log, next)
	}
	if f.replace {
		return daemon.CarryInTurn(ctx, f.socket, carry)
	}
	return carry()
}

// carry carries connections until ctx ends, a part fails or another proxy takes over. It may be
// called again after an error, by [daemon.CarryInTurn], so it opens and closes all listeners
// itself.
func (f *proxyFlags) carry(ctx context.Context, o daemon.Options, log prometheus.Collector, next *daemon.Successor) error {
	var ports cli.Ports
	defer ports.Close()
	front, err := page.OpenServer(ports.Listener(ctx), "--http", f.http, f.names...)
	if err != nil {
		return err
	}
	// Called by the agent's order to yield, it ends the proxy in order, as a signal does.
	ctx, yield := context.WithCancel(ctx)
	defer yield()
	o.Proxy.Health = &health.Loops{}
	o.Yield = func() {
		slog.Info("being replaced by another proxy")
		// Told before this process ends: systemd would take its end for the end of the unit.
		next.TellSystemd()
		yield()
	}
	d, err := f.Open(ctx, o, ports.Listener(ctx))
	if err != nil {
		return err
	}
	// Names of keys are of no use to a proxy.
	orders := control.NewServer(d.Proxy().ControlHandler(), f.users)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return next.Run(ctx) })
	g.Go(func() error { return o.Proxy.Health.Watch(ctx) })
	g.Go(func() error { return front.Serve(ctx, d.Proxy().Handler(front.Guard, orders, log)) })
	g.Go(func() error { return orders.ServeAt(ctx, f.controlPath()) })
	g.Go(func() error { f.Values.Follow(ctx, o.Proxy.Values); return nil })
	g.Go(func() error { return d.Run(ctx) })
	return g.Wait()
}

// reachPlanner makes the proxy reach the planner that the flags name. It is called when the
// flags are read, since they cannot be known where the flags are added; psidecar up changes the
// address before.
func (f *proxyFlags) reachPlanner() {
	f.Routing.Planner, f.Routing.Credentials = f.planner.Address, f.planner.Credentials
}

// addRoutingFlags adds the flags that say where keys are, and whether they move.
func addRoutingFlags(cmd *cobra.Command, f *daemon.RoutingSettings) {
	flags := cmd.Flags()
	flags.StringVar(&f.Placement, "placement", "", "placement.json from psidecar partition: key placement from a job's first request on; must be the same on all hosts; implies --mesh-only")
	flags.BoolVar(&f.Act, "act", false, "carry out the planner's plans: move keys between servers while the job runs; must be set on all hosts of the job, from its start; implies --mesh-only")
	flags.StringVar(&f.Handler, "handler", "", "effect of a push on the servers: add (store += value, immediately and without counting pushes), assign (store = value, always), or none (neither); with none, keys are never moved; with add, residuals of --threshold are pushed when a worker or proxy exits (default: unknown)")
	flags.BoolVar(&f.Probe, "allow-probe", false, "detect the handler by pushing and pulling a scratch key at the end of the key space")
	flags.StringVar(&f.Split, "split", daemon.SplitNone, "with --act: store values of 1 MiB or more in this many parts on as many servers, 2 to 16; auto chooses the number by measuring steps; for servers that add; must be the same on all hosts")
	flags.StringVar(&f.Dir, "state-dir", "/run/psidecar/state", "directory for state that must survive a kill of the proxy while keys are displaced; an agent creates it next to its --proxy-socket for --proxy-uid")
}

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/proxy/daemon"
)

// proxyFlags are the flags of psidecar proxy and of psidecar up, which has a proxy in it.
type proxyFlags struct {
	daemon.Settings
	planner plannerLink   // whose rules and plans are followed; without an address: none
	http    string        // of state and metrics; empty: none
	names   []string      // for http
	socket  string        // where the agent hands over listeners; empty: none does
	replace bool          // see replace.go
	control string        // socket as given; see controlPath
	users   control.Users // who may use that
}

// relaying adds the flags of what is carried and how. psidecar proxy and up have them; flags
// for a proxy in a process of its own are added by [newProxyCommand].
func (f *proxyFlags) relaying(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.Forward, "forward", nil, "LISTEN=DEST: connections to host:port LISTEN are for host:port DEST; can be repeated")
	flags.StringSliceVar(&f.Mesh, "mesh-listen", nil, "host:port where other hosts' proxies connect; default: --mesh-port on all addresses")
	flags.Uint16Var(&f.MeshPort, "mesh-port", 9814, "port where other hosts' proxies listen; 0: connect directly always")
	flags.StringSliceVar(&f.Codecs, "codec", []string{daemon.CompactCodec}, "codec to use where the other proxy knows it: compact encodes all messages, auto is compact where the link is what the job waits for and passes messages on as they are where encoding would take longer than it saves, none: none")
	flags.StringSliceVar(&f.Allow, "mesh-allow", nil, "CIDRs that other proxies may reach through this one, besides the address at which they reach it")
	flags.StringSliceVar(&f.Ports, "mesh-ports", nil, "ports of this host (8000, 7000-7999, any) that other proxies may reach through this one besides those at which the agent finds processes of jobs listening; needed where no agent intercepts")
	flags.StringVar(&f.TLS.Cert, "tls-cert", "", "PEM file with this proxy's certificate for links, read again when it changes")
	flags.StringVar(&f.TLS.Key, "tls-key", "", "PEM file with its key")
	flags.StringVar(&f.TLS.CA, "tls-ca", "", "PEM file with the certificates that peers' are signed by")
	flags.StringSliceVar(&f.TLS.Peers, "tls-peer", nil, "patterns (*, ?, [a-z]) for the DNS names and URIs of peers' certificates, which may then be without a role; default: those with a proxy's role (psidecar certs), by whatever name")
	flags.BoolVar(&f.Insecure, "insecure", false, "allow links without TLS to and from other hosts; in psidecar up also a planner that lets all who reach it do everything")
	flags.BoolVar(&f.OldInsecure, "insecure-mesh", false, "old name of --insecure")
	flags.StringVar(&f.control, "control-socket", controlSocket, "unix socket at which root, this process's user and --admin-uid change the proxy's rules for values and try codecs, and in psidecar up set names of keys (psidecar names set), below --state-dir where it is no absolute path; empty: none")
	addUsers(cmd, &f.users)
	flags.BoolVar(&f.MeshOnly, "mesh-only", false, "refuse connections that would go past the mesh, for want of a proxy or of a certificate that holds, instead of connecting directly and plainly")
	flags.DurationVar(&f.Retry, "no-proxy-retry", 10*time.Second, "for how long a host without a proxy is not tried again")
	flags.DurationVar(&f.PeerGrace, "peer-grace", 3*time.Second, "how long connections wait for the proxy of a host that had one, before they go direct")
	flags.DurationVar(&f.Patience, "peer-patience", time.Second, "how long the first connections to a host wait for its mesh port to open, as a pod's does when the agent has found the job in it, before they go direct")
	flags.DurationVar(&f.Grace, "grace", 10*time.Second, "how long connections in use may go on when the proxy is to end")
	flags.IntVar(&f.Mark, "mark", 0, "SO_MARK of the proxy's own sockets, by which interception leaves them alone; needs CAP_NET_ADMIN; 0: none")
	flags.IntVar(&f.Connections, "max-connections", 16384, "connections carried at a time")
	addRoutingFlags(cmd, &f.Routing)
	flags.Int64Var(&f.Memory, "proxy-memory", 1<<30, "bytes for large messages while they are encoded or decoded, and for what codecs remember of them (half of it at most), all connections together")
	flags.StringVar(&f.Share, "share-pulls", daemon.ShareAuto, "send values that several workers of a host pull once to that host, where both proxies do: true, false, or auto, which does not where answers come sooner as they are, as on links as fast as memory; what is kept for it counts towards --proxy-memory, a quarter of it at most")
	// --share-pulls alone means true, as of a flag without values.
	flags.Lookup("share-pulls").NoOptDefVal = "true"
	flags.StringVar(&f.Aggregate, "aggregate", daemon.AggregateNone, "sum what workers of this host push to a server before it leaves: host does so while the links there are busy, for jobs whose servers add up what they get, at once (--handler add); auto does, and leaves a job alone whose pushes are answered sooner one by one; asked does it for jobs for which the planner (psidecar plan aggregate apply) or their owners (psidecar.io/aggregate, PSIDECAR_AGGREGATE) say so; none")
	flags.DurationVar(&f.AggregateWait, "aggregate-wait", 0, "with --aggregate host, auto or asked, how long a push waits on purpose for those of the host's other workers")
	f.Values.Register(flags)
	flags.BoolVar(&f.Follow, "follow-codecs", true, "take up the rules for values, and on sums of pushes, that the planner has (psidecar plan codecs, aggregate), before those of flags and file, and try codecs when it asks")
}

// newProxyCommand returns psidecar proxy, which runs until it gets a signal, is replaced or a
// part of it fails.
func newProxyCommand(e env) *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Carry the connections of this host's jobs, with fewer bytes",
		Long: `Carry the connections of this host's jobs to the proxies of the hosts where
they go, over which messages take fewer bytes, or directly to hosts without
one. The job notices nothing.

Its listeners come from the host's agent (psidecar agent --intercept), at
--proxy-socket; the proxy itself needs no privileges. --forward gives explicit
listeners, for machines where connections cannot be intercepted. State
(/api/v1/connections) and metrics (/metrics) are served at --http, which changes
nothing; --control-socket takes other rules for values (PUT /api/v1/codecs) from
users of this host who may. SIGTERM ends it in order: connections in use get
--grace. SIGUSR2 has it start another of itself, of the program at its path, that
takes its place.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Before anything is opened: it may execute the program anew.
			e.carries()
			return runProxy(cmd.Context(), &f)
		},
	}
	f.relaying(cmd)
	f.planner.addFlags(cmd, "", "host:port of the planner whose rules for values are taken up (--follow-codecs) and, with --act, whose plans are carried out")
	cmd.Flags().StringVar(&f.Routing.Host, "host", "", "name of this host at the planner, the same as its agent's; default: its hostname")
	cmd.Flags().BoolVar(&f.Outlive, "outlive", false, "have the agent hold the job's connections, so that the next proxy goes on with them where this one is killed, without PS_RESEND too; on the proxies of all hosts, with Linux 6.9 and --proxy-socket, and not with --act or --placement; proxy/README.md says what it costs and which connections are not held")
	cmd.Flags().StringVar(&f.socket, "proxy-socket", daemon.DefaultSocket, "unix socket at which the agent hands over listeners; empty: none")
	cmd.Flags().BoolVar(&f.replace, "replace", false, "take the place of the proxy that runs: wait until the agent has had it end in order, and go on with its connections; SIGUSR2 has a running proxy start one so")
	addNames(cmd, &f.names)
	cmd.Flags().StringVar(&f.http, "http", "127.0.0.1:9813", "address of state and metrics; empty: none")
	return cmd
}

// runProxy runs a proxy alone in its process. SIGUSR2 is taken from before the wait for its
// turn, since by default the signal would end the process.
func runProxy(ctx context.Context, f *proxyFlags) error {
	cli.LimitMemory()
	switch {
	case f.Outlive && f.Routing.Wanted():
		return cli.Usagef("--outlive does not go with --act or --placement: connections whose requests are routed are not held; leave one of them out")
	case f.Outlive && f.socket == "":
		return cli.Usagef("--outlive needs --proxy-socket: the agent there holds the connections")
	case f.replace && f.socket == "":
		return cli.Usagef("--replace needs --proxy-socket: the agent there says when it is this proxy's turn")
	}
	f.reachPlanner()
	opts, err := f.Options()
	if err != nil {
		return err
	}
	// Once for the process: carry may be tried several times.
	next, signals := newNextProxy()
	defer signal.Stop(signals)
	return f.inTurn(ctx, func() error {
		return f.carry(ctx, daemon.Options{Proxy: opts, Socket: f.socket, Outlive: f.Outlive}, next, signals)
	})
}

// carry carries connections until ctx ends, a part fails or another proxy takes over. It may be
// called again after an error, by [proxyFlags.inTurn], so it opens and closes all listeners
// itself.
func (f *proxyFlags) carry(ctx context.Context, o daemon.Options, next *nextProxy, signals <-chan os.Signal) error {
	ports := ports{names: f.names}
	defer ports.close()
	front, err := ports.page(ctx, "--http", f.http)
	if err != nil {
		return err
	}
	// Called by the agent's order to yield, it ends the proxy in order, as a signal does.
	ctx, yield := context.WithCancel(ctx)
	defer yield()
	o.Proxy.Health = &health.Loops{}
	o.Yield = func() {
		slog.Info("another proxy takes this one's place")
		// Told before this process ends: systemd would take its end for the end of the unit.
		next.takesOver()
		yield()
	}
	d, err := f.Open(ctx, o, ports.listener(ctx))
	if err != nil {
		return err
	}
	// Names of keys are of no use to a proxy.
	orders := f.orders(d.Proxy(), nil)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return next.start(ctx, signals) })
	g.Go(func() error { return o.Proxy.Health.Watch(ctx) })
	g.Go(func() error { return front.Serve(ctx, d.Proxy().Handler(front.Guard, orders)) })
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
	flags.StringVar(&f.Placement, "placement", "", "placement.json of psidecar partition: where keys are from a job's first request on; the same on all hosts; implies --mesh-only")
	flags.BoolVar(&f.Act, "act", false, "carry out the planner's plans: keys move between servers while the job runs; on all hosts of the job, from its start; implies --mesh-only")
	flags.StringVar(&f.Handler, "handler", "", "what the servers do with a push: add (store += value, at once and without counting pushes), assign (store = value, always), none of both; with the last keys are never moved; with add what --threshold holds back is pushed when a worker or proxy ends. Default: not known")
	flags.BoolVar(&f.Probe, "allow-probe", false, "find out what the handler does by pushing to, and pulling, a scratch key at the end of the key space")
	flags.StringVar(&f.Split, "split", daemon.SplitNone, "with --act, hold values of 1 MiB or more that are on one server in so many parts on as many servers, 2 to 16; auto finds the number by steps that it measures; for servers that add up what they get, the same on all hosts")
	flags.StringVar(&f.Dir, "state-dir", "/run/psidecar/state", "folder for what a proxy must know after it was killed, while keys are displaced; an agent makes the one beside its --proxy-socket for --proxy-uid")
}

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/agent/daemon"
	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/live"
)

// plannerFlags are the flags of psidecar planner and of psidecar up, which may have a planner
// in it.
type plannerFlags struct {
	listen, http, store string // listen: for agents, proxies and tools
	lease, advertise    string // of planners that share a store
	act                 bool   // carry plans out without being asked
	live                live.Options
	tls                 identity.Files
	names               []string // for http
	keyNames            string
	called              *page.NameFile // the same as the agent's in this process; nil: keyNames
	namesSocket         string         // where names of keys are set; empty: nowhere here
	guests
}

// planning adds the flags of a planner. prefix comes before those names that other parts of the
// same process have too: it is "planner-" in psidecar up and empty otherwise.
func (f *plannerFlags) planning(cmd *cobra.Command, prefix string) {
	flags := cmd.Flags()
	flags.StringVar(&f.listen, prefix+"listen", "127.0.0.1:9811", "listen address for agents' reports and proxies")
	flags.StringVar(&f.http, prefix+"http", "127.0.0.1:9812", "listen address of the planner's web page and API; empty: disabled")
	flags.StringVar(&f.store, prefix+"store", "", "file that stores plans, or kubernetes[:NAMESPACE] to store them in Kubernetes objects; empty: no store, plans are proposed but never carried out")
	flags.StringVar(&f.lease, prefix+"lease", "psidecar-planner", "with "+prefix+"store kubernetes: name of the Lease for leader election, and prefix of the object names")
	flags.StringVar(&f.advertise, prefix+"advertise", "", "with "+prefix+"store kubernetes: IP address at which other planners reach this one; while it is the leader, they redirect clients to it")
	flags.StringVar(&f.tls.CA, prefix+"tls-ca", "", "PEM file with the CA certificates for agents and other clients; with it --"+prefix+"listen accepts only TLS")
	flags.StringVar(&f.tls.Cert, prefix+"tls-cert", "", "PEM file with the planner's certificate, reloaded when it changes")
	flags.StringVar(&f.tls.Key, prefix+"tls-key", "", "PEM file with the private key of the certificate")
	flags.StringSliceVar(&f.roles, prefix+"tls-role", nil, "ROLE=PATTERN: grant the role (agent, proxy, planner, operator) to certificates with a matching DNS name or URI, in addition to those that contain psidecar://ROLE/NAME; {host} in the pattern limits the role to that host; may be repeated")
	flags.StringVar(&f.socket, prefix+"socket", client.PlannerSocket, "Unix socket for psidecar plan on the same host, with full access for root, the planner's user and --admin-uid; empty: disabled")
	flags.BoolVar(&f.act, prefix+"act", false, "apply plans automatically (as psidecar plan apply does), and enable sums of a host's pushes where alpha shows that they save bytes (as psidecar plan aggregate apply does)")
	// The options without a flag keep their defaults.
	f.live = live.DefaultOptions
	flags.StringVar(&f.live.Strategy, prefix+"strategy", f.live.Strategy, "planning strategy for running jobs: "+strings.Join(live.Strategies(), ", "))
	flags.Float64Var(&f.live.Horizon, prefix+"horizon", f.live.Horizon, "number of worker steps within which a move must pay off")
	flags.DurationVar(&f.live.Every, prefix+"decide-every", f.live.Every, "interval between decisions about moves")
}

// newPlannerCommand returns psidecar planner, which runs until it gets a signal, loses the lead
// or a part of it fails. It needs no privileges.
func newPlannerCommand(e env) *cobra.Command {
	var f plannerFlags
	cmd := &cobra.Command{
		Use:   "planner",
		Short: "Collect the reports of all agents, plan moves and serve rules",
		Long: `Collect the reports of the agents on all hosts (psidecar agent --planner) and
present them as one: --http serves the same page and JSON API as an agent.
The planner plans key placement so that the busiest host moves the fewest bytes;
psidecar plan show shows the proposed moves. With --store, proxies that run with
--act can carry out a plan (psidecar plan apply); with --act, all plans are.

With --store kubernetes, several planners may run. The holder of the Lease
serves; if it exits, another one takes over within 15 seconds. Standby planners
redirect clients to the leader's address (--advertise); if it is unknown, they
respond that they do not serve and are not ready (/readyz). The planner needs
permission to get, create and update the Lease, and to get, list, create, update
and delete ConfigMaps, in the namespace (default: that of this pod or of the
kubeconfig).

Without --tls-ca, --tls-cert and --tls-key, --listen must be on loopback, where
root, the planner's user and --admin-uid may report and make changes, and others
may read; or use --insecure to give full access to everyone who can reach it.
With TLS, clients need a certificate of that CA (--planner-ca, --planner-cert,
--planner-key) with a role: agents and proxies for their own host, operators for
psidecar plan apply and other changes (psidecar certs issues them).
deploy/SECURITY.md describes the permissions.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.log.StartBuffering()
			return runPlanner(cmd.Context(), &f, e.log)
		},
	}
	// Without a prefix: here there is nothing else that listens or has a store.
	f.planning(cmd, "")
	addNames(cmd, &f.names)
	addKeyNames(cmd, &f.keyNames)
	addNamesSocket(cmd, &f.namesSocket, plannerNamesSocket)
	f.guests.addFlags(cmd, "give everyone who can reach --listen full access, without certificates")
	return cmd
}

// runPlanner runs a planner alone in its process, until ctx ends or a part fails, and serves the
// metrics of log beside its own.
func runPlanner(ctx context.Context, f *plannerFlags, log prometheus.Collector) error {
	// What a planner holds grows with the number of hosts and keys; no flag bounds it.
	cli.LimitMemory()
	var ports cli.Ports
	defer ports.Close()
	o, err := f.open(ctx, "--", &ports)
	if err != nil {
		return err
	}
	o.Health = &health.Loops{}
	o.Collectors = append(o.Collectors, log)
	p, err := planner.New(ctx, o)
	if err != nil {
		return err
	}
	// If either ends with an error, the other one is stopped too.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return o.Health.Watch(ctx) })
	g.Go(func() error { return p.Run(ctx) })
	return g.Wait()
}

// open checks the flags and opens what a planner needs; flag is how the names of its flags
// begin, for errors. Listeners that it has opened are closed with ports, also after an error.
// The store comes last: opening it takes its lock, and all other mistakes are to be reported
// without waiting for that.
func (f *plannerFlags) open(ctx context.Context, flag string, ports *cli.Ports) (o planner.Options, err error) {
	o = planner.Options{Version: version, NamesSocket: f.namesSocket, Users: f.users, Open: f.insecure, Act: f.act, Live: f.live, StoreName: flag + "store " + f.store}
	if f.act && f.store == "" {
		return o, cli.Usagef("%sact requires %sstore FILE: key owners must survive a restart", flag, flag)
	}
	if err := f.live.Check(); err != nil {
		return o, cli.Usagef("%sstrategy, %shorizon, %sdecide-every: %w", flag, flag, flag, err)
	}
	// In psidecar up agent and planner share what keys are called, and the agent's socket sets
	// it.
	if o.Names = f.called; o.Names == nil {
		o.Names, err = openNames(f.keyNames)
	} else {
		o.NamesElsewhere = true
	}
	if err != nil {
		return o, err
	}
	// Identity and policy come before the listener: who may call must be settled when the first
	// caller can come.
	if o.Identity, err = client.IdentityOf(f.tls, flag+"tls-"); err != nil {
		return o, err
	}
	if o.Policy, err = f.policy(flag, o.Identity); err != nil {
		return o, err
	}
	if o.Reports, err = ports.Listen(ctx, flag+"listen", f.listen); err != nil {
		return o, err
	}
	if err := f.secured(flag, o.Reports.Addr(), o.Identity); err != nil {
		return o, err
	}
	// A planner that waits sends callers on over a connection of its own, where only
	// certificates tell them apart.
	if strings.HasPrefix(f.store, "kubernetes") && f.advertise != "" && o.Identity == nil && !f.insecure {
		return o, cli.Usagef("%sadvertise requires certificates or --insecure: without them, clients redirected to the leading planner would appear as this planner's user", flag)
	}
	// After the address has been found to be safe. This socket alone may be missing.
	if o.Control, err = f.guests.open(flag, ports); err != nil {
		return o, err
	}
	if o.Front, err = page.OpenServer(ports.Listener(ctx), flag+"http", f.http, f.names...); err != nil {
		return o, err
	}
	if o.Host, err = cli.HostName(""); err != nil {
		return o, err
	}
	// A shared store is opened once this planner has the lead.
	if o.Shared, err = f.shared(flag); err != nil || o.Shared != nil || f.store == "" {
		return o, err
	}
	if o.Store, err = planner.OpenStore(f.store); err != nil {
		return o, fmt.Errorf("%sstore: %w", flag, err)
	}
	return o, nil
}

// shared returns how the planner shares its store with others by Kubernetes; nil if the store
// is a file, or there is none. It finds the cluster, but does not call it yet.
func (f *plannerFlags) shared(flag string) (*planner.Shared, error) {
	place, namespace, named := strings.Cut(f.store, ":")
	if place != "kubernetes" {
		if f.advertise != "" {
			return nil, cli.Usagef("%sadvertise is for planners that share a store: it needs %sstore kubernetes", flag, flag)
		}
		return nil, nil
	}
	if named && namespace == "" || f.lease == "" {
		return nil, cli.Usagef("%sstore %q: want kubernetes or kubernetes:NAMESPACE, and a name by %slease", flag, f.store, flag)
	}
	o := &planner.Shared{Namespace: namespace, Lease: f.lease}
	var err error
	if f.advertise != "" {
		if o.Advertise, err = netip.ParseAddr(f.advertise); err != nil {
			return nil, cli.Usagef("%sadvertise %q: want an IP address: %w", flag, f.advertise, err)
		}
	}
	// The namespace of this pod, or of the kubeconfig.
	var own string
	if o.Config, own, err = daemon.FindCluster(); err != nil {
		return nil, fmt.Errorf("%sstore %s: %w", flag, f.store, err)
	}
	if !named {
		o.Namespace = own
	}
	return o, nil
}

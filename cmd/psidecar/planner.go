package main

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/live"
)

// plannerFlags are the flags of psidecar planner and of psidecar up, which may have a planner
// in it.
type plannerFlags struct {
	planner.Settings
	tls    identity.Files
	called *page.NameFile // the same as the agent's in this process; nil: KeyNames
}

// planning adds the flags of a planner. prefix comes before those names that other parts of the
// same process have too: it is "planner-" in psidecar up and empty otherwise.
func (f *plannerFlags) planning(cmd *cobra.Command, prefix string) {
	flags := cmd.Flags()
	flags.StringVar(&f.Listen, prefix+"listen", "127.0.0.1:9811", "listen address for agents' reports and proxies")
	flags.StringVar(&f.HTTP, prefix+"http", "127.0.0.1:9812", "listen address of the planner's web page and API; empty: disabled")
	flags.StringVar(&f.Store, prefix+"store", "", "file that stores plans; empty: no store, plans are proposed but never carried out")
	flags.StringVar(&f.tls.CA, prefix+"tls-ca", "", "PEM file with the CA certificates for agents and other clients; with it --"+prefix+"listen accepts only TLS")
	flags.StringVar(&f.tls.Cert, prefix+"tls-cert", "", "PEM file with the planner's certificate, reloaded when it changes")
	flags.StringVar(&f.tls.Key, prefix+"tls-key", "", "PEM file with the private key of the certificate")
	flags.StringSliceVar(&f.Roles, prefix+"tls-role", nil, "ROLE=PATTERN: grant the role (agent, proxy, planner, operator) to certificates with a matching DNS name or URI that contain no psidecar://ROLE/NAME; {host} in the pattern limits the role to that host; may be repeated")
	flags.StringVar(&f.Socket, prefix+"socket", client.PlannerSocket, "Unix socket for psidecar plan on the same host, with full access for root, the planner's user and --admin-uid; empty: disabled")
	flags.BoolVar(&f.Act, prefix+"act", false, "apply plans automatically (as psidecar plan apply does), and enable sums of a host's pushes where alpha shows that they save bytes (as psidecar plan aggregate apply does)")
	// The options without a flag keep their defaults.
	f.Live = live.DefaultOptions
	flags.StringVar(&f.Live.Strategy, prefix+"strategy", f.Live.Strategy, "planning strategy for running jobs: "+strings.Join(live.Strategies(), ", "))
	flags.Float64Var(&f.Live.Horizon, prefix+"horizon", f.Live.Horizon, "number of worker steps within which a move must pay off")
	flags.DurationVar(&f.Live.Every, prefix+"decide-every", f.Live.Every, "interval between decisions about moves")
}

// newPlannerCommand returns psidecar planner, which runs until it gets a signal or a part of it
// fails. It needs no privileges.
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

One planner serves all hosts. While it is away jobs go on with the last plan, and
if its store is lost, the proxies teach it where the keys of running jobs are.

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
	addNames(cmd, &f.HTTPNames)
	addKeyNames(cmd, &f.KeyNames)
	cmd.Flags().BoolVar(&f.Insecure, "insecure", false, "give everyone who can reach --listen full access, without certificates")
	addUsers(cmd, &f.Users)
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

// open opens what a planner needs, with the same arguments as [planner.Settings.OpenOptions].
func (f *plannerFlags) open(ctx context.Context, flag string, ports *cli.Ports) (planner.Options, error) {
	own, err := client.IdentityOf(f.tls, flag+"tls-")
	if err != nil {
		return planner.Options{}, err
	}
	return f.OpenOptions(ctx, flag, planner.Options{Version: version, Identity: own, Names: f.called}, ports)
}

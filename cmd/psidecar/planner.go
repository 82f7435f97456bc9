package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/page/history"
	"github.com/psidecar/psidecar/page/names"
	"github.com/psidecar/psidecar/planner/access"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/codecs"
	"github.com/psidecar/psidecar/planner/fleet"
	"github.com/psidecar/psidecar/planner/intake"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/reports"
	"github.com/psidecar/psidecar/planner/standby"
	"github.com/psidecar/psidecar/planner/store"
)

// plannerFlags are what psidecar planner, and what else plans, can be told.
type plannerFlags struct {
	listen, http, store string
	lease, advertise    string
	act                 bool
	live                live.Options
	tls                 identity.Files
	names               []string // for http
	keyNames            string
	called              *names.File // the same as the agent's in this process; nil: keyNames
	namesSocket         string      // where names of keys are set; empty: nowhere here
	guests
}

// planning has all flags of a planner. The prefix is for those names that
// other parts of the same process have too.
func (f *plannerFlags) planning(cmd *cobra.Command, prefix string) {
	flags := cmd.Flags()
	flags.StringVar(&f.listen, prefix+"listen", "127.0.0.1:9811", "address at which agents report and proxies ask for plans")
	flags.StringVar(&f.http, prefix+"http", "127.0.0.1:9812", "address of the planner's page and interface; empty: none")
	flags.StringVar(&f.store, prefix+"store", "", "file in which plans survive, or kubernetes[:NAMESPACE]: objects there; empty: none, plans are proposed and never carried out")
	flags.StringVar(&f.lease, prefix+"lease", "psidecar-planner", "with "+prefix+"store kubernetes: Lease by which one of several planners has the lead, and beginning of the names of the objects")
	flags.StringVar(&f.advertise, prefix+"advertise", "", "with "+prefix+"store kubernetes: IP address at which the other planners reach this one: while it has the lead they send on who comes to them")
	flags.StringVar(&f.tls.CA, prefix+"tls-ca", "", "PEM file with the certificates that those of agents and of all who ask must be signed by; with it --"+prefix+"listen takes TLS alone")
	flags.StringVar(&f.tls.Cert, prefix+"tls-cert", "", "PEM file with the planner's certificate, read again when it changes")
	flags.StringVar(&f.tls.Key, prefix+"tls-key", "", "PEM file with its key")
	flags.StringSliceVar(&f.roles, prefix+"tls-role", nil, "ROLE=PATTERN: certificates with such a DNS name or URI have the role (agent, proxy, planner, operator), besides those that name it themselves as psidecar://ROLE/NAME; {host} in the pattern: for that host alone; can be repeated")
	flags.StringVar(&f.socket, prefix+"socket", plannerSocket, "unix socket at which root, the planner's own user and --admin-uid may do everything, for psidecar plan on the same host; empty: none")
	flags.BoolVar(&f.act, prefix+"act", false, "carry plans out without being asked (psidecar plan apply)")
	f.live = live.DefaultOptions
	flags.StringVar(&f.live.Strategy, prefix+"strategy", f.live.Strategy, "how to plan for running jobs: "+strings.Join(live.Strategies(), ", "))
	flags.Float64Var(&f.live.Horizon, prefix+"horizon", f.live.Horizon, "steps of the workers in which a move must pay back")
	flags.DurationVar(&f.live.Every, prefix+"decide-every", f.live.Every, "how often to decide what should move")
}

func newPlannerCommand(_ env) *cobra.Command {
	var f plannerFlags
	cmd := &cobra.Command{
		Use:   "planner",
		Short: "Take in what the agents of all hosts report",
		Long: `Take in what the agents of all hosts report (psidecar agent --planner), and
show it as one: the page and the JSON interface as an agent has them, at --http.
Plan where keys should live, so that the busiest host moves the fewest bytes:
psidecar plan show says what would move. With --store such a plan can be carried
out (psidecar plan apply) by proxies that have --act, with --act all are.

With --store kubernetes several planners may run: the one that has the Lease
serves, and one of the others goes on within 15 seconds when it ends. Those that
wait send on who comes to where the one that serves says that it is (--advertise);
where it does not say they answer that they do not serve, and are not ready
(/readyz). It needs the rights to get, create and update the Lease, and to get,
list, create, update and delete ConfigMaps, in the namespace: this pod's, or that
of the kubeconfig, by default.

Without --tls-ca, --tls-cert and --tls-key --listen must be on loopback, where
root, the planner's own user and --admin-uid may report and change things, and
others may ask; or --insecure lets all who reach it do everything. With them
callers need a certificate of that CA (--planner-ca, --planner-cert,
--planner-key) with a role: agents and proxies for the host that they speak for,
operators for psidecar plan apply and the like (psidecar certs issues them).
deploy/SECURITY.md says who may do what.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPlanner(cmd.Context(), &f) },
	}
	f.planning(cmd, "")
	addNames(cmd, &f.names)
	addKeyNames(cmd, &f.keyNames)
	addNamesSocket(cmd, &f.namesSocket, plannerNamesSocket)
	f.guests.add(cmd, "let all who reach --listen report, ask and change things, without a certificate")
	return cmd
}

func runPlanner(ctx context.Context, f *plannerFlags) error {
	limitMemory()
	ports := ports{names: f.names}
	defer ports.close()
	p, err := openPlanner(ctx, f, "--", &ports)
	if err != nil {
		return err
	}
	p.health = &health.Loops{}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return watchOver(ctx, p.health) })
	g.Go(func() error { return p.run(ctx) })
	return g.Wait()
}

// collector is a planner about to run.
type collector struct {
	reports  net.Listener
	identity *identity.Identity // nil: no TLS
	control  *control.Listener  // nil: none
	policy   *access.Policy
	opening  *handshake.Set // who comes to reports and has not said who it is
	front    page.Server
	store    *reports.Store
	state    *fleet.State
	curves   fleet.Curves
	kept     store.Store
	plans    *plans.Service
	codecs   *codecs.Service
	live     *live.Planner
	flags    *plannerFlags
	names    *names.File // what keys are called
	orders   *control.Server
	contest  *contest      // nil: the store is not in a cluster
	health   *health.Loops // nil: nobody watches over loops
	shown    atomic.Pointer[plans.Service]
	advising atomic.Pointer[codecs.Service] // codecs, once it serves
}

// openPlanner opens what a planner needs; flag is how the names of its flags
// begin.
func openPlanner(ctx context.Context, f *plannerFlags, flag string, ports *ports) (*collector, error) {
	c := &collector{store: &reports.Store{}, flags: f}
	if f.act && f.store == "" {
		return nil, usagef("%sact needs %sstore FILE: where keys are must be known after a restart", flag, flag)
	}
	if err := f.live.Check(); err != nil {
		return nil, usagef("%sstrategy, %shorizon, %sdecide-every: %w", flag, flag, flag, err)
	}
	var err error
	if c.names = f.called; c.names == nil {
		if c.names, err = openNames(f.keyNames); err != nil {
			return nil, err
		}
	}
	c.orders = control.NewServer(page.NamesControl(c.names), f.users)
	if c.identity, err = identityOf(f.tls, flag+"tls-"); err != nil {
		return nil, err
	}
	if c.policy, err = f.policy(flag, c.identity); err != nil {
		return nil, err
	}
	c.opening = handshake.New(handshake.Affordable(plannerOpenings), plannerOpeningsPerSource)
	c.policy.Crowd(c.opening.Dropped)
	if c.reports, err = ports.listen(ctx, flag+"listen", f.listen); err != nil {
		return nil, err
	}
	if err := f.secured(flag, c.reports.Addr(), c.identity); err != nil {
		return nil, err
	}
	if strings.HasPrefix(f.store, "kubernetes") && f.advertise != "" && c.identity == nil && !f.insecure {
		return nil, usagef("%sadvertise needs certificates or --insecure: without them who is sent on to the planner that has the lead would come as this planner's user", flag)
	}
	if c.control, err = f.open(flag, ports); err != nil {
		return nil, err
	}
	if c.front, err = ports.page(ctx, flag+"http", f.http); err != nil {
		return nil, err
	}
	host, err := nameOf("")
	if err != nil {
		return nil, err
	}
	c.curves.Kept = c.store.Kept
	c.state = &fleet.State{Version: version, Host: host, Started: time.Now(), Reports: c.store.All, Past: c.store.Past, Measures: c.measures}
	return c, c.openPlans(ctx, f, flag)
}

// openPlans opens the store and what is in it; one in a cluster only when this
// planner has the lead.
func (c *collector) openPlans(ctx context.Context, f *plannerFlags, flag string) (err error) {
	if c.contest, err = f.contest(flag, c.reports, c.front); err != nil {
		return err
	}
	if c.contest != nil {
		c.state.Unready = c.contest.unready
		return nil
	}
	var kept store.Store = &store.Memory{}
	if f.store != "" {
		if kept, err = store.OpenFile(f.store); err != nil {
			return fmt.Errorf("%sstore: %w", flag, err)
		}
	}
	return c.usePlans(ctx, kept, flag)
}

// usePlans takes up the plans that a store has.
func (c *collector) usePlans(ctx context.Context, kept store.Store, flag string) (err error) {
	f := c.flags
	c.kept = kept
	c.plans, err = plans.New(ctx, c.kept, plans.Options{Act: f.act, Forgetful: f.store == "", Strategy: f.live.Strategy})
	if err != nil {
		return errors.Join(fmt.Errorf("%sstore %s: %w", flag, f.store, err), c.kept.Close())
	}
	if c.codecs, err = codecs.New(ctx, c.kept); err != nil {
		return errors.Join(fmt.Errorf("%sstore %s: %w", flag, f.store, err), c.kept.Close())
	}
	c.codecs.Jobs = c.state.Names
	c.live = live.New(c.plans, f.live)
	c.store.Windows = c.live.Take
	return nil
}

// plan returns a job's plan for the page.
func (c *collector) plan(job string) (page.Plan, error) {
	service := c.shown.Load()
	if service == nil {
		return page.Plan{}, fmt.Errorf("%w with a plan here: another planner has the lead", page.ErrNoJob)
	}
	d, err := service.Describe(context.Background(), &api.DescribeRequest{Job: job})
	if err != nil || job == "" || len(d.GetJobs()) != 1 {
		return page.Plan{}, fmt.Errorf("%w with a plan: %q", page.ErrNoJob, job)
	}
	return fleet.Plan(d.GetJobs()[0]), nil
}

// errNoLead says that another planner serves.
var errNoLead = errors.New("another planner has the lead")

// codecsOf returns a job's rules and what codecs would do for it, for the page.
func (c *collector) codecsOf(job string) (page.Codecs, error) {
	service := c.advising.Load()
	if service == nil {
		return page.Codecs{}, fmt.Errorf("%w: %w", page.ErrNoJob, errNoLead)
	}
	d, err := service.Describe(context.Background(), &api.DescribeRulesRequest{Job: job})
	if err != nil {
		return page.Codecs{}, err
	}
	return fleet.Codecs(job, d), nil
}

// measures returns what proxies say of the measures of all jobs, by host.
func (c *collector) measures() [][]measure.Line {
	service := c.advising.Load()
	if service == nil {
		return nil
	}
	d, err := service.Describe(context.Background(), &api.DescribeRulesRequest{})
	if err != nil {
		return nil
	}
	var hosts [][]measure.Line
	for _, f := range d.GetFollowers() {
		hosts = append(hosts, api.MeasuresFrom(f.GetMeasures()))
	}
	return hosts
}

// run takes reports and shows them until ctx ends.
func (c *collector) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.front.Serve(ctx, c.handler()) })
	g.Go(func() error { c.noteHour(ctx); return nil })
	g.Go(func() error { return serveOrders(ctx, c.flags.namesSocket, c.orders) })
	g.Go(func() error {
		if c.contest != nil {
			return c.contend(ctx)
		}
		return c.serve(ctx)
	})
	return g.Wait()
}

// hourWithin is how long noteHour may take to turn.
const hourWithin = history.Every + health.Within

// noteHour keeps how jobs go, until ctx ends.
func (c *collector) noteHour(ctx context.Context) {
	beat := c.health.Add("keeping the last hour", hourWithin)
	defer beat.End()
	ticker := time.NewTicker(history.Every)
	defer ticker.Stop()
	for {
		beat.Beat()
		c.curves.Note(time.Now(), c.store.All())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// handler serves the page; of a planner that waits, the leader's.
func (c *collector) handler() http.Handler {
	metrics := []prometheus.Collector{planMetrics{&c.shown}, c.policy, c.front.Guard, silenced(c.store)}
	if c.flags.called == nil {
		metrics = append(metrics, c.orders) // else names are set at the agent's
	}
	if c.contest != nil {
		metrics = append(metrics, &c.contest.way)
	}
	own := page.Handler(c.state, page.Options{Health: c.health, Metrics: c.state.Metrics(metrics...), Plan: c.plan, Codecs: c.codecsOf, History: c.curves.History, Names: c.names})
	if c.contest == nil {
		return own
	}
	return standby.Page(own, func() netip.AddrPort { return c.contest.elsewhere().Page() })
}

// serve takes reports and plans until ctx ends.
func (c *collector) serve(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, c.kept.Close()) }()
	server := grpc.NewServer(append(intake.New(intake.MessageMemory, intake.Memory).Options(), // first: it also hears of calls that are refused
		grpc.Creds(c.credentials()), grpc.ConnectionTimeout(handshakeIn),
		grpc.ChainUnaryInterceptor(c.policy.Unary), grpc.ChainStreamInterceptor(c.policy.Stream),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))...)
	api.RegisterPlannerServer(server, c.store)
	api.RegisterPlansServer(server, c.plans)
	api.RegisterCodecsServer(server, c.codecs)
	g, ctx := errgroup.WithContext(ctx)
	c.shown.Store(c.plans)
	c.advising.Store(c.codecs)
	g.Go(func() error { return c.live.Run(ctx) })
	g.Go(func() error { c.lookAfter(ctx); return nil })
	slog.Info("taking reports", "address", c.reports.Addr().String())
	g.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	g.Go(func() error { return c.serveAt(ctx, server, handshake.Listener{Listener: c.reports, Set: c.opening}) })
	if c.control != nil {
		g.Go(func() error { return c.serveAt(ctx, server, c.control) })
	}
	return g.Wait()
}

// lookAfter shows that plans can be asked for, which nobody keeps locked, until
// ctx ends.
func (c *collector) lookAfter(ctx context.Context) {
	beat := c.health.Add("answering for plans", health.Within)
	defer beat.End()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		beat.Beat()
		_, err := c.plans.Describe(ctx, &api.DescribeRequest{Job: "no job has this name"})
		if err == nil {
			slog.Debug("a job of a strange name has a plan")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// handshakeIn is how long a connection may take until it says who it is.
const handshakeIn = 10 * time.Second

func (c *collector) serveAt(ctx context.Context, server *grpc.Server, l net.Listener) error {
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("taking reports at %s: %w", l.Addr(), err)
	}
	return nil
}

func (c *collector) credentials() credentials.TransportCredentials {
	var tls credentials.TransportCredentials
	if c.identity != nil {
		tls = identity.ServerCredentials(c.identity)
	}
	return handshake.Credentials{TransportCredentials: control.Credentials(tls, c.flags.users, c.flags.insecure, c.policy.Failed)}
}

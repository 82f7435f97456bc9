// Package planner is the process that plans for all hosts. It collects the reports of their agents,
// shows them as one fleet, decides where keys should live, and keeps its decisions in a store that
// survives it.
//
// [New] puts the parts together, from open listeners and a [store.Store]. [Planner.Run] serves until
// its context ends. Agents and proxies call it over gRPC and know it by package planner/api alone.
// The commands psidecar planner and psidecar up run it, with [Settings] that their flags fill in
// (settings.go, access.go).
//
// There is one planner and no standby: while it is away nothing moves, and proxies go on with the
// last plan. A store that is lost is taught again by them (plans/teach.go).
//
// # Parts
//
//	ReportStore   reports of agents: the newest of each host, and an hour of sums
//	fleet.State   the same as one fleet, for the page and its API
//	live.Planner  asks a strategy for moves, from the uses that agents report
//	plans.Service owners of keys, plans, and moves in progress
//	Codecs        rules for the proxies' codecs, and what codecs would save
//	runBook       the last runs of each job
//
// Reports are kept in memory, because agents send them again within seconds. Owners, rules and runs
// are in the store, and are written before anybody acts on them.
//
// # Codec rules
//
// [Codecs] has the rules for the proxies' codecs by job. Operators change them while jobs run, and
// every subscribed proxy gets all of them at each change (gRPC, service Codecs of package api).
// Rules for values are opaque JSON that only proxies interpret. Rules on sums of a host's pushes
// (codec_sums.go) travel the same way. [Codecs.Describe] lists which proxies apply the rules and
// what codecs would save.
//
// # Reports
//
// [ReportStore] has the newest report of each host. Figures in a report are sums since the agent's
// start, so the newest report is complete and a lost or repeated one does no harm.
// [ReportStore.All] returns what is known now, [ReportStore.Past] what was known some time ago.
//
// If two agents claim one host, their streams decide, never a number that they send: the newest
// stream wins until it ends. Package internal/control has decided before whether a caller may speak
// for a host at all.
//
// # Concurrency
//
// Each part has its own lock and calls no other part with it held, except that plans and Codecs
// write to the store, and plans ask for the wish of a job's owner, under theirs. Goroutines are
// started by Run only and end with its context.
package planner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/internal/page"

	"github.com/psidecar/psidecar/planner/fleet"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plans"

	"github.com/psidecar/psidecar/planner/store"
)

// Options configure a planner: what it serves, to whom, and where it keeps its decisions.
type Options struct {
	// Version and Host are this planner's, for its page.
	Version, Host string

	// Reports is the listener for agents, proxies and operators. Run closes it.
	Reports net.Listener
	// Control is a unix socket for the same calls, at which the kernel identifies the caller; nil
	// for none. Run closes it.
	Control *control.Listener
	// Identity is the planner's TLS identity at Reports; nil for no TLS.
	Identity *identity.Identity
	// Policy decides who may call what. With nil, callers without a certificate may read, and
	// trusted users of this host may do everything.
	Policy *control.Policy
	// Users are trusted at Control and over loopback. Open trusts everybody who reaches Reports.
	Users control.Users
	Open  bool

	// Front serves the page and its API.
	Front page.Server
	// Names maps keys to names; nil for none.
	Names *page.NameFile

	// Store keeps plans and rules. Run closes it, and so does New if it fails. With nil they are in
	// memory, and no plan is carried out.
	Store store.Store
	// StoreName is the name of the store in errors.
	StoreName string
	// Act carries out plans without being asked.
	Act  bool
	Live live.Options

	// Health watches over the planner's loops; nil for no supervision.
	Health *health.Loops
	// Collectors are served beside the planner's own metrics.
	Collectors []prometheus.Collector
}

// A Planner collects reports, plans, and shows what it knows. Make one with [New].
type Planner struct {
	opts Options
	// Connections to opts.Reports that have not identified themselves yet.
	opening *handshake.Set
	reports *ReportStore
	state   *fleet.State
	curves  fleet.Curves

	kept   store.Store
	plans  *plans.Service
	codecs *Codecs
	runs   *runBook
	live   *live.Planner
}

const (
	// Bounds on connections at Options.Reports that have not identified themselves. Thousands of
	// hosts may connect at once after a restart, and many from a single address behind a NAT.
	openings          = 2048
	openingsPerSource = 1024
)

// New returns a planner and reads all that its store has. It binds nothing and starts no goroutine.
func New(ctx context.Context, o Options) (*Planner, error) {
	kept := o.Store
	if kept == nil {
		kept = &store.Memory{}
	}
	if err := o.Live.Check(); err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	if o.Policy == nil {
		o.Policy = &control.Policy{Open: o.Open}
	}
	if o.Front.Guard == nil {
		o.Front.Guard = page.NewGuard()
	}
	if o.Names == nil {
		o.Names = &page.NameFile{}
	}
	p := &Planner{opts: o, reports: &ReportStore{}, opening: handshake.New(handshake.Affordable(openings), openingsPerSource)}
	o.Policy.Crowd(p.opening.Dropped)
	p.curves.Kept = p.reports.Kept
	p.state = &fleet.State{Version: o.Version, Host: o.Host, Started: time.Now(), Reports: p.reports.All, Lately: p.reports.Lately, Past: p.reports.Past, Measures: p.measures,
		Forgetful: o.Store == nil}
	p.reports.Names = p.state.JobNames
	return p, p.usePlans(ctx, kept)
}

// usePlans opens the plans, rules and runs in a store, which belongs to the planner from then on:
// if usePlans fails it closes the store.
func (p *Planner) usePlans(ctx context.Context, kept store.Store) (err error) {
	p.kept = kept
	p.plans, err = plans.New(ctx, kept, plans.Options{Act: p.opts.Act, Forgetful: p.state.Forgetful, Strategy: p.opts.Live.Strategy, Wish: p.state.Move, Scheduler: p.state.Scheduler, Title: p.state.Current})
	if err == nil {
		p.codecs, err = NewCodecs(ctx, kept)
	}
	if err == nil {
		p.runs, err = newRunBook(ctx, kept)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", p.opts.StoreName, err), kept.Close())
	}
	p.codecs.Jobs, p.codecs.Scheduler, p.codecs.Runs = p.state.Names, p.state.Scheduler, p.processesOf
	p.live = live.New(p.plans, p.opts.Live)
	p.reports.Windows = p.live.Take
	return nil
}

// Run serves until ctx ends or a part fails, and returns when all its goroutines have ended. It is
// called once.
func (p *Planner) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.opts.Front.Serve(ctx, p.handler()) })
	g.Go(func() error { p.keepHour(ctx); return nil })
	g.Go(func() error { return p.serve(ctx) })
	return g.Wait()
}

// Plans returns the plans.
func (p *Planner) Plans() *plans.Service { return p.plans }

// Codecs returns the rules for codecs.
func (p *Planner) Codecs() *Codecs { return p.codecs }

// Reports returns the reports of all hosts.
func (p *Planner) Reports() *ReportStore { return p.reports }

// Package planner is the process that plans for all hosts: it takes in what their
// agents report, shows them as one, decides where keys should live, and keeps that
// where it survives.
//
// In come open listeners and a [store.Store], or the election by which several
// planners share one ([Shared]). [New] puts the parts together, each of which is a
// package below this one; [Planner.Run] serves until its context ends. Agents and
// proxies, which it knows by planner/api alone, call it; psidecar planner and
// psidecar up run it.
//
// # Codec rules
//
// [Codecs] holds the rules for the proxies' codecs, by job, which change while jobs
// run.
//
// Users set rules, and proxies report what codecs do (gRPC, service Codecs of package
// api). All subscribed proxies get the rules; [Codecs.Describe] lists which of them
// apply them, and what codecs would save. The planner treats rules for values as
// opaque JSON that only proxies read; rules on sums of a host's pushes (codec_sums.go)
// travel the same way. Rules are in the planner's store before any proxy gets them.
// Reports are kept in memory: proxies send them again.
//
// # Reports
//
// [ReportStore] keeps the newest report of each host, and the sums of older ones for a
// while.
//
// Agents report over gRPC ([ReportStore.Report]); [ReportStore.All] is all that is
// known, [ReportStore.Past] what was known some time ago. Algorithms and page read
// them. Reports hold sums since the agent's start, so the newest one is complete;
// nothing is written to disk, since agents report again within seconds.
//
// When two agents claim one host, their streams decide, never a number that they send:
// the newest stream wins, until it ends. Whether a caller may speak for a host at all
// is decided before (package internal/control).
package planner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/page"

	"github.com/psidecar/psidecar/planner/fleet"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/plans"

	"github.com/psidecar/psidecar/planner/store"
)

// Options say what a planner serves, to whom, and where it keeps what it decided.
type Options struct {
	Version, Host string // of this planner, for its page

	// Reports is where agents report, and proxies and operators ask. Run closes it.
	Reports net.Listener
	// Control is a unix socket for the same calls, where the kernel identifies the
	// caller; nil: there is none. Run closes it.
	Control *control.Listener
	// Identity is the planner's at Reports; nil: no TLS.
	Identity *identity.Identity
	// Policy is the access policy; nil: callers without a certificate may read, and
	// trusted users of this host may do everything.
	Policy *control.Policy
	// Users are trusted at Control and at loopback; Open: so is everybody who
	// reaches Reports.
	Users control.Users
	Open  bool

	// Front is where the page and its interface are served.
	Front page.Server
	// Names are what keys are called; nil: nothing.
	Names *page.NameFile
	// NamesSocket is the unix socket where trusted users set them; empty: none.
	NamesSocket string
	// NamesElsewhere: another part of this process has Names set, and counts that.
	NamesElsewhere bool

	// Store is where plans and rules survive; Run closes it, and New where it fails.
	// Nil: they are in memory, and no plan is carried out.
	Store store.Store
	// Shared, where not nil, is how this planner comes by a store that it shares with
	// others; Store is nil then.
	Shared *Shared
	// StoreName is what errors call the store.
	StoreName string
	// Act: plans are carried out without being asked.
	Act  bool
	Live live.Options

	// Health is what loops report to; nil: nothing watches over them.
	Health *health.Loops
}

// A Planner takes reports, plans, and shows what it knows. [New] makes one.
//
// plans, codecs, runs and live are set before anything is served from them: by New, or,
// with Options.Shared, by the goroutine that got the lead, before it publishes the
// first three in serving, which is what all others read.
type Planner struct {
	opts    Options
	opening *handshake.Set // connections to opts.Reports that have not identified themselves
	orders  *control.Server
	reports *ReportStore
	state   *fleet.State
	curves  fleet.Curves
	lead    *lead // nil: the store is this planner's own

	kept    store.Store
	plans   *plans.Service
	codecs  *Codecs
	runs    *runBook
	live    *live.Planner
	serving atomic.Pointer[services]
}

// services are what a planner serves from its store.
type services struct {
	plans  *plans.Service
	codecs *Codecs
	runs   *runBook
}

// Bounds of connections at Options.Reports that have not identified themselves.
// Thousands of hosts may come at once, from one address where another planner sends
// them on.
const (
	openings          = 2048
	openingsPerSource = 1024
)

// New returns a planner, having read what its store has.
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
	p.orders = control.NewServer(page.NamesControl(o.Names), o.Users)
	o.Policy.Crowd(p.opening.Dropped)
	p.curves.Kept = p.reports.Kept
	p.state = &fleet.State{Version: o.Version, Host: o.Host, Started: time.Now(), Reports: p.reports.All, Lately: p.reports.Lately, Past: p.reports.Past, Measures: p.measures,
		Forgetful: o.Store == nil && o.Shared == nil}
	p.reports.Names = p.state.JobNames
	if o.Shared != nil {
		var err error
		if p.lead, err = newLead(o.Shared, o.Reports, o.Front); err != nil {
			return nil, err
		}
		p.state.Unready = p.lead.unready
		return p, nil
	}
	return p, p.usePlans(ctx, kept)
}

// usePlans takes up the plans and rules that a store has. The store is the
// planner's from then on.
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
	p.codecs.Jobs, p.codecs.Scheduler = p.state.Names, p.state.Scheduler
	p.live = live.New(p.plans, p.opts.Live)
	p.reports.Windows = p.live.Take
	return nil
}

// Run takes reports, plans and serves until ctx ends.
func (p *Planner) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.opts.Front.Serve(ctx, p.handler()) })
	g.Go(func() error { p.keepHour(ctx); return nil })
	g.Go(func() error { return p.orders.ServeAt(ctx, p.opts.NamesSocket) })
	g.Go(func() error {
		if p.lead != nil {
			return p.contend(ctx)
		}
		return p.serve(ctx)
	})
	return g.Wait()
}

// Plans returns the plans; nil while another planner has the lead.
func (p *Planner) Plans() *plans.Service {
	if s := p.serving.Load(); s != nil {
		return s.plans
	}
	return nil
}

// Codecs returns the rules for values; nil while another planner has the lead.
func (p *Planner) Codecs() *Codecs {
	if s := p.serving.Load(); s != nil {
		return s.codecs
	}
	return nil
}

// Reports returns the newest report of each host.
func (p *Planner) Reports() *ReportStore { return p.reports }

// OpenStore opens a file in which plans survive, for Options.Store.
func OpenStore(path string) (store.Store, error) { return store.OpenFile(path) }

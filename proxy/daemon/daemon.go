// Package daemon is a proxy with everything around it on a host: the listeners that the
// host's agent hands over, routing by the planner's plans or a placement, the guard that
// keeps connects from going direct while keys are displaced, and the planner's rules for
// values.
//
// [New] makes a proxy, [Daemon.Run] carries connections until its context ends, and then lets
// those in use end in order. psidecar proxy and psidecar up run one, with [Settings] that
// their flags fill in.
//
// daemon.go puts the parts together; routing.go prepares package jobs, follow.go follows the
// planner's rules, and rulefile.go those of the configuration file. successor.go replaces a
// proxy by the next one. settings.go, routingsettings.go, aggregate.go and ruleflags.go check
// what flags say, and turn it into options; their errors are [cli.UsageError] where the user
// has to change something.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/proxy/jobs"
)

// Options configure a daemon.
type Options struct {
	// Proxy has the proxy's options, except Jobs, Guard and Reach.Owner, which New sets.
	Proxy proxy.Options

	// Forward are listeners whose connections have one destination; Mesh are those at which
	// other hosts' proxies connect. Run closes them.
	Forward []proxy.Listener
	Mesh    []net.Listener

	// Socket is the Unix socket at which the host's agent hands over listeners. Connect does
	// the same where the agent is in this process. At most one is set; with none there are no
	// listeners but Forward and Mesh.
	Socket  string
	Connect func(context.Context) (*net.UnixConn, error)
	// Outlive has the agent at Socket hold connections, so that they survive a kill of this
	// proxy.
	Outlive bool
	// Yield, where not nil, is called when another proxy waits at the agent to replace this
	// one: Run's context has to end then. It must not block.
	Yield func()

	// Routing, where not nil, has requests routed; New sets those of its fields that concern
	// Proxy.
	Routing *jobs.Options
	// Rules, where not nil, is the planner whose rules for values are followed.
	Rules *Planner
}

// Planner is how a planner is reached.
type Planner struct {
	Address     string // host:port
	Credentials credentials.TransportCredentials
	Host        string // name of this host at the planner
}

// Daemon is a proxy that is about to run.
type Daemon struct {
	opts     Options
	proxy    *proxy.Proxy
	follower *follower   // nil: there is no planner
	guard    proxy.Guard // of jobs whose requests are routed
	// agent hands over listeners; nil until Run.
	agent    atomic.Pointer[handover.Client]
	oldAgent sync.Once // the agent's inability to tell owners of ports was logged
}

// New makes a proxy. Where requests are routed it blocks until the state folder is there,
// which an agent that starts later may make, or stateWait is over.
func New(ctx context.Context, o Options) (*Daemon, error) {
	d := &Daemon{}
	// Shared by the proxy and the codec for values, and filled by the agent.
	if o.Proxy.Titles == nil {
		o.Proxy.Titles = &policy.Titles{}
	}
	// Set before the proxy exists: Daemon.owner answers that there is no agent until Run has
	// made one.
	if o.Socket != "" || o.Connect != nil {
		o.Proxy.Reach.Owner = d.owner
	}
	if o.Routing != nil {
		// It changes the proxy's options, so it comes before the proxy is made.
		if err := d.route(ctx, &o.Proxy, *o.Routing); err != nil {
			return nil, err
		}
	}
	d.opts = o
	var err error
	if d.proxy, err = proxy.New(o.Proxy); err != nil {
		return nil, err
	}
	if r := o.Rules; r != nil {
		d.follower = newFollower(followOptions{Planner: r.Address, Credentials: r.Credentials, Host: r.Host, Dial: dial.MarkGRPC(o.Proxy.Mark, slog.Default()),
			Codec: o.Proxy.Values, Advise: d.proxy.Advise, Measures: d.proxy.Measures, Sums: d.proxy.SetSums})
	}
	return d, nil
}

// Proxy returns the proxy, whose state may be served before, during and after Run.
func (d *Daemon) Proxy() *proxy.Proxy { return d.proxy }

// Run carries connections until ctx ends, and then ends in order. The session with the agent
// lasts until the last connection has ended: some are handed over by it.
func (d *Daemon) Run(ctx context.Context) error {
	carrying, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	// Other hosts' proxies can still ask this one while it is decided what becomes of its
	// connections.
	defer context.AfterFunc(ctx, func() {
		d.proxy.PrepareEnd()
		end()
	})()
	return d.carryUntil(carrying)
}

// carryUntil carries connections until ctx ends, and then ends at once, in order.
func (d *Daemon) carryUntil(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	ended := make(chan struct{}) // closed when all connections have ended, or are the next proxy's
	if client := d.client(ended); client != nil {
		// It ends after carry: StayUntil has the session outlast ctx.
		g.Go(func() error { return client.Run(ctx) })
	}
	g.Go(func() error {
		defer close(ended)
		return d.carry(ctx)
	})
	return g.Wait()
}

// client returns the client that gets listeners from the agent, wired to the proxy; nil where
// there is no agent. Everything that the agent can tell or be asked is connected here:
// listeners to serve, pings to health, what connections leave behind to the proxy's keeper
// and heir, titles, last pushes and the guard.
//
// An agent in the same process gets neither pings nor connections: it ends together with the
// proxy.
func (d *Daemon) client(ended <-chan struct{}) *handover.Client {
	var client *handover.Client
	switch {
	case d.opts.Connect != nil:
		client = handover.NewLocalClient(d.opts.Connect, d.serve)
	case d.opts.Socket != "":
		client = handover.NewClient(d.opts.Socket, d.serve)
		// A proxy that is stuck must not answer pings, so that the agent lets connects go
		// direct.
		client.Alive(d.opts.Proxy.Health.Late)
		client.Carried(d.proxy.Carried)
		if d.opts.Outlive {
			d.proxy.Keep(client)
		}
		// Before Run, as all of these: the first connection may come with the first message
		// of the agent.
		d.proxy.LeaveTo(client)
		client.Keeps(d.proxy.TakeKept, d.proxy.Settled)
		client.StayUntil(ended)
		if d.opts.Yield != nil {
			client.Yields(func() {
				d.proxy.Replaced()
				d.opts.Yield()
			})
		}
	default:
		return nil
	}
	d.proxy.TellFull(client.SetFull)
	client.Crowded(d.proxy.Crowded)
	client.Spares(d.proxy.Spares)
	client.PartKeys(d.partKeys)
	client.LastPushes(d.proxy.LastPush)
	client.Titles(func(t handover.Title) {
		d.opts.Proxy.Titles.Set(originOf(t.Cgroup, t.Netns), t.Job, policy.JobTitle{Name: t.Name, Wishes: t.Wishes})
	})
	// From here on the guard can set policies, and links can be judged by owners.
	d.guard.Intercepting(client)
	d.agent.Store(client)
	return client
}

// partKeys returns the part keys that the agent is told.
func (d *Daemon) partKeys() map[string][]handover.PartRange {
	if d.opts.Proxy.Jobs == nil {
		return nil
	}
	all := map[string][]handover.PartRange{}
	for _, k := range d.opts.Proxy.Jobs.PartKeys() {
		for _, r := range k.Ranges {
			all[k.Job] = append(all[k.Job], handover.PartRange{r.First, r.Last, r.Whole})
		}
	}
	return all
}

// carry runs the proxy and what goes with it until ctx ends.
func (d *Daemon) carry(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if d.follower != nil {
		g.Go(func() error { return d.follower.Run(ctx) })
	}
	g.Go(func() error {
		d.guard.Run(ctx, d.opts.Proxy.Health.Add("guarding displaced keys", health.Within))
		return nil
	})
	// While the proxy ends, its connections end too, which must not open the cgroups that it
	// guards.
	g.Go(func() error { <-ctx.Done(); d.guard.Freeze(); return nil })
	g.Go(func() error { return d.proxy.Run(ctx, d.opts.Forward, d.opts.Mesh) })
	g.Go(func() error { d.judge(ctx); return nil })
	return g.Wait()
}

// judgeEvery is how often the agent is told which connections do not need this proxy.
const judgeEvery = time.Second

// judge tells the agent which connections do not need this proxy, until ctx ends.
func (d *Daemon) judge(ctx context.Context) {
	every := time.NewTicker(judgeEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-every.C:
			if client := d.agent.Load(); client != nil {
				client.Judge(d.proxy.Unneeded(now))
			}
		}
	}
}

// serve serves a listener that the agent has handed over.
func (d *Daemon) serve(ctx context.Context, l *handover.Listener) error {
	if l.Mesh {
		return d.proxy.ServeLinks(ctx, l, l.Netns)
	}
	if jobs := d.opts.Proxy.Jobs; jobs != nil && l.Closed {
		jobs.Closed(l.Cgroup)
	}
	// The guard must know the cgroup before a connection of it is carried.
	defer d.guard.Add(proxy.GuardedListener{ID: l.ID, Cgroup: l.Cgroup, Job: l.Job})()
	return d.proxy.Serve(ctx, proxy.Listener{
		Listener: l, Destination: proxy.OriginalDestination, Job: l.Job, Origin: originOf(l.Cgroup, l.Netns),
		Scope: jobs.Scope{Cgroup: l.Cgroup, Netns: l.Netns},
	})
}

// originOf identifies the processes of a cgroup in a network namespace, for codecs.
func originOf(cgroup, netns uint64) string { return fmt.Sprintf("cgroup %d netns %d", cgroup, netns) }

// owner is [proxy.Reach.Owner], answered by the agent.
func (d *Daemon) owner(ctx context.Context, netns uint64, at netip.AddrPort) (cgroup uint64, found bool, err error) {
	client := d.agent.Load()
	if client == nil {
		return 0, false, handover.ErrNoAgent // not yet
	}
	cgroup, found, err = client.Owner(ctx, netns, at)
	if errors.Is(err, handover.ErrOldAgent) {
		d.oldAgent.Do(func() {
			slog.Warn("proxies on other hosts can reach every port of this host, because its agent does not report the jobs' ports; upgrade the agent", "error", err)
		})
		err = proxy.ErrUntold
	}
	return cgroup, found, err
}

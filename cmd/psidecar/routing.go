package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/planner/placement"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/handover"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// routingFlags say where keys are, and whether they move.
type routingFlags struct {
	placement, handler, dir string
	act, probe              bool
	planner                 plannerLink
	host                    string
}

func (f *routingFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.placement, "placement", "", "placement.json of psidecar partition: where keys are from a job's first request on; the same on all hosts; implies --mesh-only")
	flags.BoolVar(&f.act, "act", false, "carry out the planner's plans: keys move between servers while the job runs; on all hosts of the job, from its start; implies --mesh-only")
	flags.StringVar(&f.handler, "handler", "", "what the servers do with a push: add (store += value), assign (store = value, always), none of both; with the last keys are never moved. Default: not known")
	flags.BoolVar(&f.probe, "allow-probe", false, "find that out by pushing to, and pulling, a scratch key at the end of the key space")
	flags.StringVar(&f.dir, "state-dir", "/run/psidecar/state", "folder for what a proxy must know after it was killed, while keys are displaced")
}

// wanted reports whether requests are to be routed at all.
func (f *routingFlags) wanted() bool { return f.placement != "" || f.act }

func (f *routingFlags) options() (o jobs.Options, err error) {
	o.Dir, o.Probe = f.dir, f.probe
	switch f.handler {
	case "":
	case "add":
		o.Handler = migrate.Adds
	case "assign":
		o.Handler = migrate.Assigns
	case "none":
		o.Handler = migrate.Opaque
	default:
		return o, usagef("--handler %q: want add, assign or none", f.handler)
	}
	switch {
	case f.act && f.placement != "":
		return o, usagef("--act and --placement exclude each other: with --act the planner says where keys are")
	case f.act && f.planner.address == "":
		return o, usagef("--act needs --planner")
	case f.probe && !f.act:
		return o, usagef("--allow-probe is of use with --act only")
	}
	if f.act {
		o.Planner = f.planner.address
		if o.Credentials, err = f.planner.credentials(); err != nil {
			return o, err
		}
	}
	if o.Host = f.host; o.Host == "" {
		if o.Host, err = os.Hostname(); err != nil {
			return o, fmt.Errorf("asking for the host's name: %w", err)
		}
	}
	if f.placement != "" {
		if o.Placement, err = placement.ReadFile(f.placement); err != nil {
			return o, fmt.Errorf("--placement: %w", err)
		}
	}
	return o, nil
}

// route makes the proxy route requests, where that is wanted.
func (c *carrier) route(f *proxyFlags, opts *proxy.Options) error {
	if !f.routing.wanted() {
		return nil
	}
	o, err := f.routing.options()
	if err != nil {
		return err
	}
	if f.meshPort == 0 {
		return usagef("--placement and --act need proxies on all hosts, which --mesh-port 0 rules out")
	}
	o.Dial = func(ctx context.Context, host netip.Addr) (net.Conn, error) { return c.proxy.DialSite(ctx, host) }
	o.FailClosed = c.guard.set
	// A connection past a proxy would be one whose requests go wrong.
	opts.MeshOnly, opts.Retry, opts.ConnectTimeout = true, 500*time.Millisecond, 3*time.Second
	opts.Jobs, err = jobs.New(o)
	return err
}

// guard has connects of jobs fail, rather than go direct, while there is no
// proxy. It knows which listener is for which job's cgroup.
type guard struct {
	mu      sync.Mutex
	client  *handover.Client
	cgroups map[uint64]string // jobs of cgroups, empty where not known
}

// guarded makes the agent behind the client the one to ask.
func (c *carrier) guarded(client *handover.Client) {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	c.guard.client = client
}

// add notes a listener until the function that it returns is called.
func (g *guard) add(l *handover.Listener) func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cgroups == nil {
		g.cgroups = map[uint64]string{}
	}
	g.cgroups[l.Cgroup] = l.Job
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.cgroups, l.Cgroup)
	}
}

// set implements jobs.Options.FailClosed.
func (g *guard) set(ctx context.Context, job string, on bool) error {
	g.mu.Lock()
	client := g.client
	var groups []uint64
	for id, of := range g.cgroups {
		if of == job || of == "" {
			groups = append(groups, id)
		}
	}
	g.mu.Unlock()
	if client == nil {
		return nil // explicit listeners: nothing is intercepted
	}
	if len(groups) == 0 {
		return errors.New("no listener of the job is known")
	}
	for _, id := range groups {
		if err := client.SetFailClosed(ctx, id, on); err != nil {
			return err
		}
	}
	return nil
}

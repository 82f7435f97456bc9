package main

import (
	"context"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/daemon"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/page"
)

// agentFlags are the flags of psidecar agent and of the other verbs that watch.
type agentFlags struct {
	daemon.Settings
	http        string        // address of the page; empty: none
	names       []string      // for http
	namesSocket string        // where names of keys are set
	users       control.Users // who may
	pprof       bool          // serve profiles, too
	planner     plannerLink   // without an address: it reports to none
	intercept   daemon.InterceptSettings
	pods        daemon.PodSettings
	otlp        daemon.ExportSettings
}

// watching adds the flags that say what is watched and what that may cost. psidecar agent, up
// and record have them.
func (f *agentFlags) watching(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.Cgroups, "cgroup", nil, "cgroups to watch; default: those of all PS-lite processes found")
	flags.IntSliceVar(&f.PIDs, "pid", nil, "processes whose cgroups to watch")
	flags.StringSliceVar(&f.Jobs, "job", nil, "jobs to show, by their names or their schedulers' host:port; default: all")
	flags.StringSliceVar(&f.Allowed, "allow-annotations", daemon.DefaultAllowed, "what the owners of jobs may say by annotations of their pods (psidecar.io/threshold) and in the environment of their processes (PSIDECAR_THRESHOLD): job, observe, codec, threshold, move, aggregate; none: nothing. The default names a job and changes no value; with threshold and move owners answer for their results, and with observe for what is watched")
	flags.StringVar(&f.Sample, "sample", "auto", "look at the keys of one in that many windows of requests; 1: all; auto: as --cpu-budget allows")
	flags.Float64Var(&f.Budget, "cpu-budget", 1, "with --sample auto: percent of one core, over a minute, that copying out and counting keys may take; those of a step every few seconds are looked at whatever that takes")
	flags.IntVar(&f.Ring, "ring-size", 32<<20, "bytes of the buffer between kernel and agent, a power of two")
	flags.IntVar(&f.Streams, "streams", 16384, "connections that are followed at a time, each direction counted")
	flags.IntVar(&f.Memory, "memory", 160<<20, "bytes for keys and their counters, of all jobs together")
	flags.StringVar(&f.Ingress, "ingress", daemon.DefaultIngress, "what to watch of what is received: off; metas, to time answers from other hosts; all, where the senders' hosts have no agent")
	flags.StringVar(&f.Proc, "proc", "/proc", "where the host's processes are listed")
	flags.StringVar(&f.CgroupRoot, "cgroup-root", "", "where cgroup v2 is mounted; default: as /proc/self/mounts says")
}

// showing adds the flags of what an agent serves and reports. psidecar agent and up have them;
// record shows nothing.
func (f *agentFlags) showing(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.http, "http", "127.0.0.1:9810", "address of the page, the interface and the metrics; empty: none")
	addNames(cmd, &f.names)
	addKeyNames(cmd, &f.KeyNames)
	flags.BoolVar(&f.pprof, "pprof", false, "serve profiles at /debug/pprof/")
	addExport(cmd, &f.otlp)
	flags.StringVar(&f.Host, "host", "", "name of this host in reports and on the page; default: its hostname")
	flags.Uint32Var(&f.Link, "link-mbit", 0, "speed of this host's link in Mbit/s, which the planner counts with; 0: as the node's annotation "+daemon.LinkAnnotation+" or the interface of the default route says")
}

// newAgentCommand returns psidecar agent, which runs until it gets a signal or a part of it
// fails. It needs root, or the capabilities that psidecar doctor lists.
func newAgentCommand(e env) *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Watch the PS-lite jobs of this host",
		Long: `Watch the PS-lite jobs of this host: who uses which parameter, what crosses
the network, how long requests take. Nothing is put in the data path; when the
agent ends, however it ends, nothing of it stays in the kernel.

With --intercept it also has the jobs' connections sent to a proxy on this
host, and hands that proxy, which needs no privileges, its listeners. What it
loads for this stays when the agent is killed, and goes at its orderly end or
with psidecar unload. Connections of jobs that are found, rather than named by
--cgroup, are intercepted some hundredths of a second after their processes
start; a connection that one makes before goes direct.

The page, the JSON interface (/api/v1) and the metrics (/metrics) are served
at --http, which changes nothing; --names-socket takes names of keys (PUT
/api/v1/names) from users of this host who may.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := f.Options(version)
			if err != nil {
				return err
			}
			return runAgent(cmd.Context(), opts, &f)
		},
	}
	f.watching(cmd)
	f.showing(cmd)
	addNamesSocket(cmd, &f.namesSocket, agentNamesSocket)
	addUsers(cmd, &f.users)
	addIntercepting(cmd, &f.intercept, false)
	addHanding(cmd, &f.intercept)
	addPods(cmd, &f.pods)
	f.planner.addFlags(cmd, "", "host:port of the planner to report to")
	return cmd
}

// runAgent runs an agent alone in its process, until ctx ends or a part fails. opts are those
// of f.
//
// The order of its steps counts. Everything that a wrong flag or an address in use can make
// fail comes before the redirecting programs are loaded, since these outlive a process that
// dies. [daemon.New] takes the interception over, and closes it where it fails itself.
func runAgent(ctx context.Context, opts agent.Options, f *agentFlags) error {
	// The limit follows from --memory and --ring-size rather than from the cgroup: an agent is
	// to stay within them also on a host whose memory is large.
	debug.SetMemoryLimit(f.MemoryLimit())
	creds, err := f.planner.Credentials()
	if err != nil {
		return err
	}
	// Listeners first: an agent whose address is taken must not touch the kernel.
	ports := ports{names: f.names}
	defer ports.close()
	front, err := ports.page(ctx, "--http", f.http)
	if err != nil {
		return err
	}
	named, err := f.pods.Open(&opts)
	if err != nil {
		return err
	}
	// After the pods: a node's annotation may say how fast its link is.
	opts.Machine = f.Machine(named)
	opts.Health = &health.Loops{}
	orders := control.NewServer(page.NamesControl(opts.Names), f.users)
	opts.Collectors = append(opts.Collectors, front.Guard, orders)
	// Windows of keys are asked for by planners alone.
	if f.planner.Address != "" {
		daemon.ShareWindows(&opts)
	}
	exporter, err := f.otlp.Open(&opts)
	if err != nil {
		return err
	}
	interception, err := f.intercept.Open()
	if err != nil {
		return err
	}
	d, err := daemon.New(daemon.Options{Agent: opts, Interception: interception, Pods: named, Planner: f.planner.Address, Credentials: creds, Exporter: exporter})
	if err != nil {
		return err
	}
	// Each of these ends when ctx does. The agent's own end takes longest, as it reads what the
	// kernel still holds.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return opts.Health.Watch(ctx) })
	g.Go(func() error { return d.Run(ctx) })
	g.Go(func() error { return front.Serve(ctx, d.Agent().Handler(f.pprof)) })
	g.Go(func() error { return orders.ServeAt(ctx, f.namesSocket) })
	return g.Wait()
}

package main

import (
	"context"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/daemon"
	"github.com/psidecar/psidecar/internal/cli"
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
	flags.StringSliceVar(&f.Cgroups, "cgroup", nil, "cgroups to watch (default: those of all discovered PS-lite processes)")
	flags.IntSliceVar(&f.PIDs, "pid", nil, "PIDs of processes whose cgroups to watch")
	flags.StringSliceVar(&f.Jobs, "job", nil, "jobs to show, by name or scheduler host:port (default: all)")
	flags.StringSliceVar(&f.Allowed, "allow-annotations", daemon.DefaultAllowed, "settings that job owners may request by pod annotation (psidecar.io/threshold) or environment variable (PSIDECAR_THRESHOLD): job, observe, codec, threshold, move, aggregate, or none. The default allows job names and lossless codecs. With threshold and move, owners are responsible for their results; with observe, they decide what is watched")
	flags.StringVar(&f.Sample, "sample", "auto", "inspect the keys of one in this many request windows; 1: all windows; auto: as --cpu-budget permits")
	flags.Float64Var(&f.Budget, "cpu-budget", 1, "with --sample auto: CPU budget for copying and counting keys, in percent of one core, averaged over a minute; one step every few seconds is always inspected")
	flags.IntVar(&f.Ring, "ring-size", 32<<20, "size of the ring buffer between kernel and agent in bytes, a power of two")
	flags.IntVar(&f.Streams, "streams", 16384, "maximum number of connections followed at a time; each direction counts")
	flags.IntVar(&f.Memory, "memory", 160<<20, "memory limit for keys and their counters in bytes, all jobs together")
	flags.StringVar(&f.Ingress, "ingress", daemon.DefaultIngress, "ingress traffic to watch: off; metas, to measure the latency of answers from other hosts; all, if the senders' hosts have no agent")
	flags.StringVar(&f.Proc, "proc", "/proc", "path of the host's procfs")
	flags.StringVar(&f.CgroupRoot, "cgroup-root", "", "mount point of cgroup v2 (default: from /proc/self/mounts)")
}

// showing adds the flags of what an agent serves and reports. psidecar agent and up have them;
// record shows nothing.
func (f *agentFlags) showing(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.http, "http", "127.0.0.1:9810", "listen address of the web page, the API and the metrics; empty: disabled")
	addNames(cmd, &f.names)
	addKeyNames(cmd, &f.KeyNames)
	flags.BoolVar(&f.pprof, "pprof", false, "serve pprof profiles at /debug/pprof/")
	addExport(cmd, &f.otlp)
	flags.StringVar(&f.Host, "host", "", "name of this host in reports and on the page (default: the hostname)")
	flags.Uint32Var(&f.Link, "link-mbit", 0, "speed of this host's link in Mbit/s, used by the planner; 0: from the node annotation "+daemon.LinkAnnotation+" or from the interface of the default route")
}

// newAgentCommand returns psidecar agent, which runs until it gets a signal or a part of it
// fails. It needs root, or the capabilities that psidecar doctor lists.
func newAgentCommand(e env) *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Watch the PS-lite jobs of this host",
		Long: `Watch the PS-lite jobs of this host: which worker uses which parameter, what
crosses the network, and how long requests take. The agent is not in the data
path. When it exits or is killed, nothing of it remains in the kernel.

With --intercept the agent also redirects the jobs' connections to a proxy on
this host, and passes the listeners to that proxy, which needs no privileges.
The redirection survives a kill of the agent; a graceful shutdown or psidecar
unload removes it. If jobs are discovered rather than selected with --cgroup,
interception starts some hundredths of a second after their processes start;
earlier connections go direct.

--http serves the web page, the JSON API (/api/v1) and the metrics (/metrics);
all are read-only. --names-socket accepts key names (PUT /api/v1/names) from
authorized users of this host.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.log.StartBuffering()
			opts, err := f.Options(version)
			if err != nil {
				return err
			}
			opts.Collectors = append(opts.Collectors, e.log)
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
	var ports cli.Ports
	defer ports.Close()
	front, err := page.OpenServer(ports.Listener(ctx), "--http", f.http, f.names...)
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

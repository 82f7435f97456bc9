package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/daemon"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/page"
)

// agentFlags are the flags of psidecar agent and of the other verbs that watch.
type agentFlags struct {
	daemon.Settings
	http      string      // address of the page; empty: none
	names     []string    // for http
	pprof     bool        // serve profiles, too
	planner   plannerLink // without an address: it reports to none
	intercept daemon.InterceptSettings
	pods      daemon.PodSettings
}

// Options returns the agent's options, after a check of what there is to watch: the kernel's own
// answers would come when half of the agent is open.
func (f *agentFlags) Options(version string) (agent.Options, error) {
	for _, dir := range f.Cgroups {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			return agent.Options{}, fmt.Errorf("--cgroup %s: %w", dir, err)
		}
		if fs.Type != unix.CGROUP2_SUPER_MAGIC {
			return agent.Options{}, cli.Usagef("--cgroup %s: not a directory of cgroup v2", dir)
		}
	}
	for _, pid := range f.PIDs {
		if _, err := os.Stat(filepath.Join(f.Proc, strconv.Itoa(pid))); err != nil {
			return agent.Options{}, fmt.Errorf("--pid %d: no such process", pid)
		}
	}
	if f.Ring < 1<<16 || f.Ring > 1<<30 || f.Ring&(f.Ring-1) != 0 {
		return agent.Options{}, cli.Usagef("--ring-size %d: want a power of two from %d to %d", f.Ring, 1<<16, 1<<30)
	}
	return f.Settings.Options(version)
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
	flags.Float64Var(&f.Budget, "cpu-budget", 1, "with --sample auto: CPU budget of all watching, in the kernel and in the process, in percent of one core, averaged over a minute. To keep it, keys are sampled, reports become rarer, and connections with very many messages are watched for a part of the time only")
	flags.IntVar(&f.Ring, "ring-size", 32<<20, "size of the ring buffer between kernel and agent in bytes, a power of two")
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
all are read-only.`,
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
	opts.Collectors = append(opts.Collectors, front.Guard)
	// Windows of keys are asked for by planners alone.
	if f.planner.Address != "" {
		daemon.ShareWindows(&opts)
	}
	interception, err := f.intercept.Open()
	if err != nil {
		return err
	}
	d, err := daemon.New(daemon.Options{Agent: opts, Interception: interception, Pods: named, Planner: f.planner.Address, Credentials: creds})
	if err != nil {
		return err
	}
	// Each of these ends when ctx does. The agent's own end takes longest, as it reads what the
	// kernel still holds.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return opts.Health.Watch(ctx) })
	g.Go(func() error { return d.Run(ctx) })
	g.Go(func() error { return front.Serve(ctx, d.Agent().Handler(f.pprof)) })
	return g.Wait()
}

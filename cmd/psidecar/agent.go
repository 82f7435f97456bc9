package main

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/daemon"
	"github.com/psidecar/psidecar/agent/locality"

	"github.com/psidecar/psidecar/agent/pods"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/bpf/probe"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/page"
)

// agentFlags are what psidecar agent, and what else watches, can be told.
type agentFlags struct {
	cgroups, jobs   []string
	allowed         []string // what owners of jobs may ask for
	pids            []int
	http            string
	names           []string // for http
	keyNames        string
	namesSocket     string        // where names of keys are set
	users           control.Users // who may
	pprof           bool
	sample          string
	budget          float64
	ring, streams   int
	memory          int
	ingress         string
	proc, cgroupDir string
	host            string
	link            uint32
	planner         plannerLink
	intercept       interceptFlags
	pods            podFlags
	otlp            otlpFlags
}

func (f *agentFlags) watching(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.cgroups, "cgroup", nil, "cgroups to watch; default: those of all PS-lite processes found")
	flags.IntSliceVar(&f.pids, "pid", nil, "processes whose cgroups to watch")
	flags.StringSliceVar(&f.jobs, "job", nil, "jobs to show, by their names or their schedulers' host:port; default: all")
	flags.StringSliceVar(&f.allowed, "allow-annotations", policy.Default, "what the owners of jobs may say by annotations of their pods (psidecar.io/threshold) and in the environment of their processes (PSIDECAR_THRESHOLD): job, observe, codec, threshold, move, aggregate; none: nothing. The default names a job and changes no value; with threshold and move owners answer for their results, and with observe for what is watched")
	flags.StringVar(&f.sample, "sample", "auto", "look at the keys of one in that many windows of requests; 1: all; auto: as --cpu-budget allows")
	flags.Float64Var(&f.budget, "cpu-budget", 1, "with --sample auto: percent of one core, over a minute, that copying out and counting keys may take; those of a step every few seconds are looked at whatever that takes")
	flags.IntVar(&f.ring, "ring-size", 32<<20, "bytes of the buffer between kernel and agent, a power of two")
	flags.IntVar(&f.streams, "streams", 16384, "connections that are followed at a time, each direction counted")
	flags.IntVar(&f.memory, "memory", 160<<20, "bytes for keys and their counters, of all jobs together")
	flags.StringVar(&f.ingress, "ingress", bpf.IngressMetas.String(), "what to watch of what is received: off; metas, to time answers from other hosts; all, where the senders' hosts have no agent")
	flags.StringVar(&f.proc, "proc", "/proc", "where the host's processes are listed")
	flags.StringVar(&f.cgroupDir, "cgroup-root", "", "where cgroup v2 is mounted; default: as /proc/self/mounts says")
}

// showing has the flags of what an agent shows and tells.
func (f *agentFlags) showing(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.http, "http", "127.0.0.1:9810", "address of the page, the interface and the metrics; empty: none")
	addNames(cmd, &f.names)
	addKeyNames(cmd, &f.keyNames)
	flags.BoolVar(&f.pprof, "pprof", false, "serve profiles at /debug/pprof/")
	f.otlp.addFlags(cmd)
	flags.StringVar(&f.host, "host", "", "name of this host in reports and on the page; default: its hostname")
	flags.Uint32Var(&f.link, "link-mbit", 0, "speed of this host's link in Mbit/s, which the planner counts with; 0: as the node's annotation "+pods.LinkAnnotation+" or the interface of the default route says")
}

func (f *agentFlags) options() (agent.Options, error) {
	o := agent.Options{
		Version: version, Cgroups: f.cgroups, PIDs: f.pids, Jobs: f.jobs,
		Proc: f.proc, CgroupRoot: f.cgroupDir,
		Capture:  bpf.Options{RingBytes: f.ring, Streams: f.streams, MeasureCost: true},
		Locality: locality.DefaultOptions,
	}
	var err error
	if o.Allowed, err = policy.ParseAllowed(f.allowed); err != nil {
		return o, cli.Usagef("--allow-annotations %w", err)
	}
	if o.Capture.Ingress, err = bpf.ParseIngressMode(f.ingress); err != nil {
		return o, cli.Usagef("--ingress %w", err)
	}
	if f.memory < 1<<20 {
		return o, cli.Usagef("--memory %d: at least %d bytes are needed", f.memory, 1<<20)
	}
	o.Locality.Counts.MemoryBytes = f.memory
	switch f.sample {
	case "auto":
		if f.budget <= 0 || f.budget > 10000 {
			return o, cli.Usagef("--cpu-budget %v: want percent of one core, above 0", f.budget)
		}
		o.Sampling = agent.Sampling{OneIn: agent.StartOneIn, Window: agent.StartWindow, Budget: f.budget}
	default:
		n, err := strconv.ParseUint(f.sample, 10, 32)
		if err != nil || n == 0 {
			return o, cli.Usagef("--sample %q: want a number from 1 (all) on, or auto", f.sample)
		}
		o.Sampling = agent.Sampling{OneIn: uint32(n)}
	}
	if o.Names, err = openNames(f.keyNames); err != nil {
		return o, err
	}
	if o.CgroupRoot == "" {
		if o.CgroupRoot, err = probe.Cgroup2(); err != nil {
			return o, err
		}
		if o.CgroupRoot == "" {
			return o, errors.New("cgroup v2 is not mounted (psidecar doctor tells what to do)")
		}
	}
	o.Host, err = cli.HostName(f.host)
	return o, err
}

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
			opts, err := f.options()
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
	f.intercept.intercepting(cmd, false)
	f.intercept.handing(cmd)
	f.pods.addFlags(cmd)
	f.planner.addFlags(cmd, "", "host:port of the planner to report to")
	return cmd
}

func runAgent(ctx context.Context, opts agent.Options, f *agentFlags) error {
	debug.SetMemoryLimit(f.memoryLimit())
	creds, err := f.planner.Credentials()
	if err != nil {
		return err
	}
	ports := ports{names: f.names}
	defer ports.close()
	front, err := ports.page(ctx, "--http", f.http)
	if err != nil {
		return err
	}
	named, err := f.pods.openPods(&opts)
	if err != nil {
		return err
	}
	opts.Machine = f.machine(named)
	opts.Health = &health.Loops{}
	orders := control.NewServer(page.NamesControl(opts.Names), f.users)
	opts.Collectors = append(opts.Collectors, front.Guard, orders)
	if f.planner.Address != "" {
		opts.Locality.WindowKeys = locality.DefaultWindowKeys
	}
	exporter, err := f.otlp.open(&opts)
	if err != nil {
		return err
	}
	interception, err := f.intercept.open()
	if err != nil {
		return err
	}
	d, err := daemon.New(daemon.Options{Agent: opts, Interception: interception, Pods: named, Planner: f.planner.Address, Credentials: creds})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return opts.Health.Watch(ctx) })
	g.Go(func() error { return d.Run(ctx) })
	g.Go(func() error { return runExporter(ctx, exporter, d.Agent()) })
	g.Go(func() error { return front.Serve(ctx, d.Agent().Handler(f.pprof)) })
	g.Go(func() error { return orders.ServeAt(ctx, f.namesSocket) })
	return g.Wait()
}

// machine returns what says what this host is: the flag before the node, where
// its name is asked for, and that before the system.
func (f *agentFlags) machine(node *pods.Pods) func() agent.Machine {
	return func() agent.Machine {
		m := agent.MeasureMachine(os.DirFS("/"))
		if f.link > 0 {
			m.LinkMbit, m.LinkSource = f.link, "--link-mbit"
		} else if node != nil && node.Link() > 0 {
			m.LinkMbit, m.LinkSource = node.Link(), "node's "+pods.LinkAnnotation
		}
		return m
	}
}

// memoryLimit is what the Go runtime should aim for with these flags.
func (f *agentFlags) memoryLimit() int64 {
	return int64(counts.MemoryLimit - counts.DefaultOptions.MemoryBytes + f.memory)
}

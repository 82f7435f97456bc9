package daemon

import (
	"errors"
	"os"
	"strconv"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/policy"
)

// Default values of flags.
var (
	DefaultAllowed = policy.Default
	DefaultIngress = bpf.IngressMetas.String()
)

// LinkAnnotation is the node's annotation with the speed of its link.
const LinkAnnotation = discover.LinkAnnotation

// followed is how many connections the kernel follows at a time; each direction counts.
const followed = 16384

// Settings say what an agent watches and what it may cost, in the form of the flags of psidecar
// agent, up and record. [Settings.Options] checks them.
type Settings struct {
	Cgroups, Jobs    []string
	Allowed          []string // annotations that owners of jobs may set
	PIDs             []int
	KeyNames         string  // file with names of keys
	Sample           string  // "auto", or a number: one in so many windows is sampled
	Budget           float64 // percent of a core, for "auto"
	Ring             int     // bytes of the ring buffer
	Memory           int     // bytes for counts
	Ingress          string
	Proc, CgroupRoot string
	Host             string // empty: the hostname
	Link             uint32 // Mbit/s; 0: the node or the interface decides
}

// Options checks the settings and returns the options of an agent. An error of the user's is a
// [cli.UsageError]. It reads the file of key names and looks for the mount of cgroup v2.
func (f *Settings) Options(version string) (agent.Options, error) {
	o := agent.Options{
		Version: version, Cgroups: f.Cgroups, PIDs: f.PIDs, Jobs: f.Jobs,
		Proc: f.Proc, CgroupRoot: f.CgroupRoot,
		Capture:  bpf.Options{RingBytes: f.Ring, Streams: followed, MeasureCost: true},
		Locality: counts.DefaultLocalityOptions,
	}
	var err error
	if o.Allowed, err = policy.ParseAllowed(f.Allowed); err != nil {
		return o, cli.Usagef("--allow-annotations %w", err)
	}
	if o.Capture.Ingress, err = bpf.ParseIngressMode(f.Ingress); err != nil {
		return o, cli.Usagef("--ingress %w", err)
	}
	if f.Memory < 1<<20 {
		return o, cli.Usagef("--memory %d: at least %d bytes are needed", f.Memory, 1<<20)
	}
	o.Locality.Counts.MemoryBytes = f.Memory
	switch f.Sample {
	// What is sampled until a job's cost is known.
	case "auto":
		if f.Budget <= 0 || f.Budget > 10000 {
			return o, cli.Usagef("--cpu-budget %v: want percent of one core, above 0", f.Budget)
		}
		o.Sampling = agent.Sampling{OneIn: agent.StartOneIn, Window: agent.StartWindow, Budget: f.Budget}
	default:
		n, err := strconv.ParseUint(f.Sample, 10, 32)
		if err != nil || n == 0 {
			return o, cli.Usagef("--sample %q: want a number from 1 (all) on, or auto", f.Sample)
		}
		o.Sampling = agent.Sampling{OneIn: uint32(n)}
	}
	if o.Names, err = page.OpenNames(f.KeyNames); err != nil {
		return o, cli.Usagef("--names: %w", err)
	}
	if o.CgroupRoot == "" {
		if o.CgroupRoot, err = bpf.Cgroup2Mount(); err != nil {
			return o, err
		}
		if o.CgroupRoot == "" {
			return o, errors.New("cgroup v2 is not mounted (see psidecar doctor)")
		}
	}
	o.Host, err = cli.HostName(f.Host)
	return o, err
}

// ShareWindows makes the agent keep windows of keys, which a planner asks for. They cost
// memory, so an agent without a planner has none.
func ShareWindows(o *agent.Options) { o.Locality.WindowKeys = counts.DefaultWindowKeys }

// Machine returns a function that describes this host. The speed of the link comes from the
// flag, else from the node's annotation (node may be nil), else from the interface. It is a
// function because the annotation may change.
func (f *Settings) Machine(node *discover.Pods) func() agent.Machine {
	return func() agent.Machine {
		m := agent.MeasureMachine(os.DirFS("/"))
		if f.Link > 0 {
			m.LinkMbit, m.LinkSource = f.Link, "--link-mbit"
		} else if node != nil && node.Link() > 0 {
			m.LinkMbit, m.LinkSource = node.Link(), "node's "+LinkAnnotation
		}
		return m
	}
}

// MemoryLimit returns the soft memory limit for the Go runtime, in bytes, with these settings.
func (f *Settings) MemoryLimit() int64 {
	return int64(counts.MemoryLimit - counts.DefaultOptions.MemoryBytes + f.Memory)
}

package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api"
)

// Agent implements page.State. It lists the agents that report, and their cost and losses in total.
// The planner itself watches nothing, so it has no programs or counters of its own. The costs are
// sums over hosts: 100% is one core of one of them.
func (s *State) Agent() page.Agent {
	a := page.Agent{
		Version: s.Version, Host: s.Host, Started: s.Started,
		Programs: []page.Program{}, Counters: []page.Counter{}, Sketches: []page.Sketch{}, Cgroups: []string{}, Hosts: []page.Host{},
	}
	lost := map[string]page.Counter{}
	for _, r := range s.Reports() {
		h := host(r)
		a.CPUSeconds += r.GetAgent().GetCpuSeconds()
		a.CPUPercent += h.CPUPercent
		a.KernelPercent += h.KernelPercent
		a.MemoryBytes += h.MemoryBytes
		// The planner's figures are no better than those of the agent that samples the least.
		a.Sampling.OneIn = max(a.Sampling.OneIn, h.SampledOneIn)
		for _, c := range h.Lost {
			// Reasons have the same meaning on every host, so losses add up by reason.
			c.Events, c.Bytes = c.Events+lost[c.Reason].Events, c.Bytes+lost[c.Reason].Bytes
			lost[c.Reason] = c
		}
		a.Hosts = append(a.Hosts, h)
	}
	for _, c := range lost {
		a.Counters = append(a.Counters, c)
	}
	slices.SortFunc(a.Counters, func(x, y page.Counter) int { return cmp.Compare(x.Reason, y.Reason) })
	// A planner has no sketch of its own. What it shows is how well the agents' sketches count a
	// job together.
	for job, of := range s.byJob() {
		a.Sketches = append(a.Sketches, sketch(job, of.reports))
	}
	slices.SortFunc(a.Sketches, func(x, y page.Sketch) int { return cmp.Compare(x.Job, y.Job) })
	return a
}

// host turns a report's account of its host into what the page shows.
func host(r *api.HostReport) page.Host {
	a := r.GetAgent()
	h := page.Host{
		Host: r.GetHost(), Version: a.GetVersion(), Started: time.Unix(0, a.GetStartedUnixNanos()), Reported: time.Unix(0, r.GetUnixNanos()),
		Jobs: len(r.GetJobs()), CPUPercent: a.GetCpuPercent(), KernelPercent: a.GetKernelPercent(), MemoryBytes: a.GetMemoryBytes(),
		SampledOneIn: max(a.GetSampledOneIn(), 1), Lost: []page.Counter{},
	}
	if m := r.GetMachine(); m != nil {
		h.Machine = &page.Machine{LinkMbit: m.GetLinkMbit(), LinkSource: m.GetLinkSource(), Cores: int(m.GetCores())}
	}
	for _, l := range a.GetLost() {
		h.Lost = append(h.Lost, page.Counter{
			Reason: l.GetReason(), Class: page.Lost, Help: l.GetHelp(), Events: l.GetEvents(), Bytes: l.GetBytes(),
		})
	}
	return h
}

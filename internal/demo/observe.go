package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/page"
)

// Ports on every host. Hosts have network namespaces of their own, so all of them can use the
// same.
const (
	agentPort   = 9810
	reportPort  = 9811 // of the planner
	plannerPort = 9812 // likewise
	proxyPort   = 9813
)

// fleet is what psidecar runs on the hosts: an agent on each; a planner on a host of its own, to
// which they report and whose page shows all hosts as one; and later a proxy on each.
type fleet struct {
	planner *service
	agents  []*service
	proxies []*service
}

// startPlanner starts a planner, which has nothing to show before there are agents.
func (s *stage) startPlanner(ctx context.Context) (err error) {
	s.fleet.planner, err = startService(ctx, s.plannerHost(), plannerPort, s.options.Psidecar, "planner", "--listen", s.planner(), "--insecure", "--socket", "")
	return err
}

// observe runs the job with agents and a planner.
// The accesses that the agents count are compared with the workers'.
func (s *stage) observe(ctx context.Context) (Result, error) {
	if err := s.startAgents(ctx); err != nil {
		return Result{}, err
	}
	result, err := s.measureJob(ctx, "observe")
	if err != nil {
		return Result{}, err
	}
	if result.ObservedByAgents, err = s.fleet.accesses(ctx, result.Accesses); err != nil {
		return Result{}, err
	}
	return result, s.showHeatmap(ctx, "before placement")
}

// planner returns the address to which agents report.
func (s *stage) planner() string { return hostPort(s.plannerHost(), reportPort) }

// showHeatmap shows which workers have used which keys of the latest job, once the planner knows
// of all of them.
func (s *stage) showHeatmap(ctx context.Context, when string) error {
	if s.options.Heatmap == nil {
		return nil
	}
	var h page.Heatmap
	err := s.fleet.planner.await(ctx, func(ctx context.Context) error {
		var jobs page.Jobs
		if err := s.fleet.planner.get(ctx, "/api/v1/jobs", &jobs); err != nil {
			return err
		}
		for _, j := range jobs.Jobs {
			h = page.Heatmap{}
			if err := s.fleet.planner.get(ctx, "/api/v1/heatmap?job="+url.QueryEscape(j.Name), &h); err != nil {
				return err
			}
			used := slices.DeleteFunc(slices.Clone(h.Counts), func(row []uint64) bool { return slices.Max(append(row, 0)) == 0 })
			if len(used) == s.options.Hosts {
				return nil
			}
		}
		return fmt.Errorf("the planner knows of %d workers that use keys", len(h.Workers))
	})
	if err != nil {
		return err
	}
	return s.options.Heatmap(when, h)
}

// startAgents starts an agent on every host.
func (s *stage) startAgents(ctx context.Context) error {
	for _, h := range s.hosts() {
		job, err := h.Group(jobGroup)
		if err != nil {
			return err
		}
		a, err := startService(ctx, h, agentPort, s.options.Psidecar, "agent", "--host", h.Name, "--cgroup", job, "--planner", s.planner())
		if err != nil {
			return err
		}
		s.fleet.agents = append(s.fleet.agents, a)
	}
	return nil
}

// stop ends the whole fleet, the planner last, so that nothing reports to nobody.
func (f *fleet) stop() error {
	err := errors.Join(stopAll(&f.proxies), stopAll(&f.agents))
	if f.planner != nil {
		err = errors.Join(err, f.planner.stop())
	}
	return err
}

// accesses returns how many accesses the agents have counted. The workers have ended by now, but
// an agent may not have read all that the kernel has copied: it waits as long as the count is
// below want and grew within the last second.
func (f *fleet) accesses(ctx context.Context, want uint64) (uint64, error) {
	const patience = time.Second
	var counted uint64
	for still := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var now uint64
		for _, a := range f.agents {
			var jobs page.Jobs
			if err := a.get(ctx, "/api/v1/jobs", &jobs); err != nil {
				return 0, err
			}
			for _, j := range jobs.Jobs {
				now += j.Accesses
			}
		}
		if now > counted {
			counted, still = now, time.Now()
		}
		if counted >= want || time.Since(still) > patience {
			return counted, nil
		}
	}
}

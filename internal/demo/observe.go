package demo

import (
	"context"
	"errors"
	"time"

	"github.com/psidecar/psidecar/page"
)

// Ports on every host. Hosts have network namespaces of their own, so all of them can use the
// same.
const (
	agentPort   = 9810
	reportPort  = 9811 // of the planner, on the first host
	plannerPort = 9812 // likewise
	proxyPort   = 9813
)

// fleet is what psidecar runs on the hosts: an agent on each; a planner on the first, to which
// they report and whose page shows all hosts as one; and later a proxy on each.
type fleet struct {
	planner *service
	agents  []*service
	proxies []*service
}

// startPlanner starts a planner, which has nothing to show before there are agents.
func (s *stage) startPlanner(ctx context.Context) (err error) {
	first := s.net.Host(0)
	s.fleet.planner, err = startService(ctx, first, plannerPort, s.options.Psidecar, "planner", "--listen", hostPort(first, reportPort), "--insecure", "--socket", "")
	return err
}

// observe runs the job with agents and a planner. The agents count every key, so that their
// counts can be compared with the workers'. In later phases they sample as their budget allows,
// as they do without flags.
func (s *stage) observe(ctx context.Context) (Result, error) {
	if err := s.startAgents(ctx, "--planner", hostPort(s.net.Host(0), reportPort)); err != nil {
		return Result{}, err
	}
	result, err := s.measureJob(ctx, "observe")
	if err != nil {
		return Result{}, err
	}
	result.ObservedByAgents, err = s.fleet.accesses(ctx, result.Accesses)
	return result, err
}

// startAgents starts an agent on every host, with additional flags.
func (s *stage) startAgents(ctx context.Context, args ...string) error {
	for _, h := range s.net.Hosts() {
		job, err := h.Group(jobGroup)
		if err != nil {
			return err
		}
		words := append([]string{"agent", "--host", h.Name, "--cgroup", job, "--sample", "1"}, args...)
		a, err := startService(ctx, h, agentPort, s.options.Psidecar, words...)
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

// accesses returns how many accesses the agents counted, as far as the planner knows. Reports
// come every two seconds, so it waits as long as the count is below want and grew within the
// last six.
func (f *fleet) accesses(ctx context.Context, want uint64) (uint64, error) {
	const patience = 6 * time.Second
	var counted uint64
	// The workers have ended by now. What is missing is in reports that are under way.
	for still := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var jobs page.Jobs
		if err := f.planner.get(ctx, "/api/v1/jobs", &jobs); err != nil {
			return 0, err
		}
		var now uint64
		for _, j := range jobs.Jobs {
			now += j.Accesses
		}
		if now > counted {
			counted, still = now, time.Now()
		}
		if counted >= want || time.Since(still) > patience {
			return counted, nil
		}
	}
}

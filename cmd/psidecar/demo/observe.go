package demo

import (
	"context"
	"errors"
	"time"

	"github.com/psidecar/psidecar/agent/web"
)

// fleet is an agent for each host, and the planner to which they report: its
// page shows all hosts as one.
type fleet struct {
	planner *service
	agents  []*service
}

// observe runs the job with the fleet beside it. The fleet stays.
func (s *stage) observe(ctx context.Context) (Result, error) {
	if err := s.startFleet(ctx); err != nil {
		return Result{}, err
	}
	result, err := s.run(ctx, "observe")
	if err != nil {
		return Result{}, err
	}
	result.ObservedByAgents, err = s.fleet.accesses(ctx, result.Accesses)
	return result, err
}

func (s *stage) startFleet(ctx context.Context) error {
	reports, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	program := s.options.Psidecar
	if s.fleet.planner, err = startService(ctx, "the planner", program, "planner", "--listen", reports); err != nil {
		return err
	}
	for _, h := range s.net.Hosts() {
		a, err := startService(ctx, "the agent of "+h.Name, program,
			"agent", "--host", h.Name, "--cgroup", h.Cgroup(), "--planner", reports, "--sample", "1")
		if err != nil {
			return err
		}
		s.fleet.agents = append(s.fleet.agents, a)
	}
	return nil
}

// stop ends the whole fleet.
func (f *fleet) stop() error {
	var errs []error
	for _, a := range f.agents {
		errs = append(errs, a.stop())
	}
	if f.planner != nil {
		errs = append(errs, f.planner.stop())
	}
	return errors.Join(errs...)
}

// accesses returns how many accesses of keys the agents counted, as the planner
// knows it. Reports come every other second: as long as the count is below want
// and still grows, it is given time.
func (f *fleet) accesses(ctx context.Context, want uint64) (uint64, error) {
	const patience = 6 * time.Second
	var counted uint64
	for still := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var jobs web.Jobs
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

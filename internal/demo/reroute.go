package demo

import (
	"context"
	"path/filepath"
	"strconv"
)

// wandering returns a job whose workers have favourite keys, which change halfway through: keys
// are used where they are not at home, and a placement made before the run would be out of
// date.
func (o Options) wandering() (steps int, args []string) {
	steps = 5 * o.Steps
	return steps, []string{"--model=count", "--count-keys=20000", "--count-batch=800", "--count-favourites=1600", "--value-length=64", "--count-common=0.05",
		"--count-wander=" + strconv.Itoa((steps+1)/2), "--steps=" + strconv.Itoa(steps)}
}

// reroute runs a job whose hot keys wander, first as it is, then with a planner that moves keys
// to their users. All keys start at home both times.
func (s *stage) reroute(ctx context.Context) (Result, error) {
	if err := s.startProxies(ctx); err != nil {
		return Result{}, err
	}
	steps, args := s.options.wandering()
	s.telling.tell("first with all keys at home")
	home, err := s.runJob(ctx, "reroute", steps, args...)
	if err != nil {
		return Result{}, err
	}
	// Another planner at the same address, since one without --act only proposes. Its store is
	// new, and the jobs of earlier phases are not in it.
	if err := s.fleet.planner.stop(); err != nil {
		return Result{}, err
	}
	s.fleet.planner, err = startService(ctx, s.plannerHost(), plannerPort, s.options.Psidecar, "planner", "--listen", s.planner(), "--insecure", "--socket", "",
		"--act", "--store", filepath.Join(s.dir, "plans"), "--decide-every", decideEvery.String())
	if err != nil {
		return Result{}, err
	}
	// Keys can only move if the job's connections are routed from its start, so the proxies are
	// replaced as well.
	if err := s.startProxies(ctx, "--act", "--handler", "add", "--planner", s.planner()); err != nil {
		return Result{}, err
	}
	s.telling.tell("keys moved to their users")
	moved, err := s.runJob(ctx, "reroute", steps, args...)
	if err != nil {
		return Result{}, err
	}
	moved.Home = &home
	return moved, s.unguarded(ctx)
}

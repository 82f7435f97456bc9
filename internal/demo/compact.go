package demo

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/hosts"
)

// compact runs the job with a proxy on every host: agents redirect the job's connections to it,
// and messages between hosts are encoded losslessly. The planner keeps what was reported
// before.
func (s *stage) compact(ctx context.Context) (Result, error) {
	if err := s.startProxies(ctx); err != nil {
		return Result{}, err
	}
	return s.measureJob(ctx, "compact")
}

// grace is how long the demo's proxies wait for moves in progress when they end. A phase ends
// them after its job, so nothing important is left.
const grace = "2s"

// startProxies replaces all agents and proxies by an agent on every host that intercepts, and a
// proxy that takes its listeners. args are additional flags for the proxies.
func (s *stage) startProxies(ctx context.Context, args ...string) error {
	// The proxies first: an agent that ends under a proxy takes its listeners away. Phases have
	// no job running between them, so nothing depends on either.
	if err := stopAll(&s.fleet.proxies); err != nil {
		return err
	}
	if err := stopAll(&s.fleet.agents); err != nil {
		return err
	}
	// Kept whatever happens, since what has started must be stopped.
	all := s.hosts()
	s.fleet.agents, s.fleet.proxies = make([]*service, len(all)), make([]*service, len(all))
	var g errgroup.Group
	for i, h := range all {
		g.Go(func() (err error) {
			s.fleet.agents[i], s.fleet.proxies[i], err = s.startProxy(ctx, h, args)
			return err
		})
	}
	return g.Wait()
}

// startProxy starts agent and proxy of one host and waits until the proxy has the listeners: a
// job that starts earlier would go direct.
func (s *stage) startProxy(ctx context.Context, h *hosts.Host, args []string) (a, p *service, err error) {
	socket := filepath.Join(s.dir, h.Name+".sock")
	job, err := h.Group(jobGroup)
	if err != nil {
		return nil, nil, err
	}
	a, err = startService(ctx, h, agentPort, s.options.Psidecar, "agent", "--host", h.Name, "--cgroup", job, "--planner", s.planner(),
		"--intercept", "--proxy-socket", socket, "--bpf-dir", "/sys/fs/bpf/"+h.Namespace())
	if err != nil {
		return nil, nil, err
	}
	p, err = startService(ctx, h, proxyPort, s.options.Psidecar,
		append([]string{"proxy", "--proxy-socket", socket, "--insecure", "--codec", "compact", "--grace", grace, "--state-dir", filepath.Join(s.dir, h.Name+".state"),
			"--control-socket", filepath.Join(s.dir, h.Name+".control")}, args...)...)
	if err != nil {
		return a, nil, err
	}
	// Below the demo's folder, since the state folders are the proxies' own.
	p.control = filepath.Join(s.dir, h.Name+".control")
	return a, p, a.await(ctx, func(ctx context.Context) error {
		n, err := a.metric(ctx, "psidecar_intercept_proxies")
		if err == nil && n != 1 {
			err = fmt.Errorf("%v proxies hold its listeners, want 1", n)
		}
		return err
	})
}

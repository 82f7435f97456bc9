package demo

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/psidecar/psidecar/internal/hosts"
)

// compact runs the job with a proxy on every host: agents redirect the job's connections to it,
// and messages between hosts are encoded losslessly. The planner keeps what was reported
// before.
func (s *stage) compact(ctx context.Context) (Result, error) {
	if err := s.startProxies(ctx, nil); err != nil {
		return Result{}, err
	}
	return s.measureJob(ctx, "compact")
}

// grace is how long the demo's proxies wait for moves in progress when they end. A phase ends
// them after its job, so nothing important is left.
const grace = "2s"

// startProxies replaces all agents and proxies by an agent on every host that intercepts, and a
// proxy that takes its listeners. agent and proxy are additional flags for either.
func (s *stage) startProxies(ctx context.Context, agent []string, proxy ...string) error {
	// The proxies first: an agent that ends under a proxy takes its listeners away. Phases have
	// no job running between them, so nothing depends on either.
	if err := stopAll(&s.fleet.proxies); err != nil {
		return err
	}
	if err := stopAll(&s.fleet.agents); err != nil {
		return err
	}
	for _, h := range s.net.Hosts() {
		if err := s.startProxy(ctx, h, agent, proxy); err != nil {
			return err
		}
	}
	return nil
}

// startProxy starts agent and proxy of one host and waits until the proxy has the listeners: a
// job that starts earlier would go direct.
func (s *stage) startProxy(ctx context.Context, h *hosts.Host, agent, args []string) error {
	socket := filepath.Join(s.dir, h.Name+".sock")
	job, err := h.Group(jobGroup)
	if err != nil {
		return err
	}
	a, err := startService(ctx, h, agentPort, s.options.Psidecar, append([]string{"agent", "--host", h.Name, "--cgroup", job,
		"--intercept", "--proxy-socket", socket, "--bpf-dir", "/sys/fs/bpf/" + h.Namespace()}, agent...)...)
	if err != nil {
		return err
	}
	s.fleet.agents = append(s.fleet.agents, a)
	p, err := startService(ctx, h, proxyPort, s.options.Psidecar,
		append([]string{"proxy", "--proxy-socket", socket, "--insecure", "--codec", "compact", "--grace", grace, "--state-dir", filepath.Join(s.dir, h.Name+".state"),
			"--control-socket", filepath.Join(s.dir, h.Name+".control")}, args...)...)
	if err != nil {
		return err
	}
	// Below the demo's folder, since the state folders are the proxies' own.
	p.control = filepath.Join(s.dir, h.Name+".control")
	s.fleet.proxies = append(s.fleet.proxies, p)
	return a.await(ctx, func(ctx context.Context) error {
		n, err := a.metric(ctx, "psidecar_intercept_proxies")
		if err == nil && n != 1 {
			err = fmt.Errorf("%v proxies hold its listeners, want 1", n)
		}
		return err
	})
}

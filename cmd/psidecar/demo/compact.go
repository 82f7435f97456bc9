package demo

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/psidecar/psidecar/test/hosts"
)

// compact runs the job with a proxy on every host: agents send the job's
// connections there, and messages between hosts go in the lossless codec. The
// planner keeps what was reported before.
func (s *stage) compact(ctx context.Context) (Result, error) {
	if err := stopAll(&s.fleet.agents); err != nil {
		return Result{}, err
	}
	for _, h := range s.net.Hosts() {
		if err := s.startProxy(ctx, h); err != nil {
			return Result{}, err
		}
	}
	return s.run(ctx, "compact")
}

// startProxy starts a proxy on a host, and an agent that hands it listeners.
func (s *stage) startProxy(ctx context.Context, h *hosts.Host) error {
	socket := filepath.Join(s.dir, h.Name+".sock")
	job, err := h.Group("job")
	if err != nil {
		return err
	}
	a, err := startService(ctx, h, agentPort, s.options.Psidecar, "agent", "--host", h.Name, "--cgroup", job, "--sample", "1",
		"--intercept", "--proxy-socket", socket, "--bpf-dir", "/sys/fs/bpf/"+h.Namespace())
	if err != nil {
		return err
	}
	s.fleet.agents = append(s.fleet.agents, a)
	p, err := startService(ctx, h, proxyPort, s.options.Psidecar, "proxy", "--proxy-socket", socket, "--insecure-mesh")
	if err != nil {
		return err
	}
	s.fleet.proxies = append(s.fleet.proxies, p)
	return a.await(ctx, func(ctx context.Context) error {
		n, err := a.metric(ctx, "psidecar_intercept_proxies")
		if err == nil && n != 1 {
			err = fmt.Errorf("%v proxies hold its listeners, want 1", n)
		}
		return err
	})
}

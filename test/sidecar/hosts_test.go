package sidecar

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestTwoHostsAsHelpSays: up on two hosts, with no flag but those of its help and what hosts on
// one machine cannot share, carries a job between them and shows both at the planner: with the
// certificates of one command, and with --insecure.
func TestTwoHostsAsHelpSays(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	for _, name := range []string{"certificates", "insecure"} {
		t.Run(name, func(t *testing.T) {
			n := hoststest.New(t, hosts.Config{Hosts: 2})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			dir := t.TempDir()
			certs := []string{"certs", "--out", dir, "--role", "agent,proxy,planner"}
			for _, h := range n.Hosts() {
				certs = append(certs, "--host", h.Name+","+h.IPv4.String())
			}
			if out, err := exec.CommandContext(ctx, program, certs...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var all []*Sidecar
			for i, h := range n.Hosts() {
				flags := []string{"--insecure"}
				if name == "certificates" {
					own := filepath.Join(dir, h.Name)
					flags = []string{"--tls-ca", filepath.Join(own, "ca.crt"), "--tls-cert", filepath.Join(own, "tls.crt"), "--tls-key", filepath.Join(own, "tls.key")}
				}
				if i > 0 {
					flags = append(flags, "--planner", net.JoinHostPort(n.Host(0).IPv4.String(), "9811"))
				}
				all = append(all, Start(t, h, program, "sidecar", flags...))
			}
			mine, count := hosts.Program{psjob, "--json"}, hosts.Program{psjob, "--json", "--model", "count", "--steps", "40"}
			_, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(2, mine), Workers: hosts.Repeat(2, count)}.Run(ctx)
			require.NoError(t, err)
			for _, s := range all {
				if n, err := s.Metric(ctx, "psidecar_proxy_past_mesh_total"); err != nil || n != 0 {
					t.Errorf("%s: %v connections went past the mesh, want none; %v", s.Host.Name, n, err)
				}
			}
			var agent page.Agent
			if err := all[0].Get(ctx, PlannerPage, "/api/v1/agent", &agent); err != nil || len(agent.Hosts) != 2 {
				t.Errorf("hosts %+v, %v; want both", agent.Hosts, err)
			}
		})
	}
}

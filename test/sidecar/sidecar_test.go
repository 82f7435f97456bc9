package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestMain lets the test program be the tasks of its tests.
func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"sink": sink, "storm": storm})
}

// TestUp: psidecar up on every host, the planner's on the first, and the last in the job's own
// cgroup, carries a job whose sums are exact, shows it, and ends in order.
func TestUp(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	n := hoststest.New(t, hosts.Config{Hosts: 3})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	planner := net.JoinHostPort(n.Host(0).IPv4.String(), strconv.Itoa(Planner))
	all := []*Sidecar{
		Start(t, n.Host(0), program, "sidecar", "--sample", "1"),
		Start(t, n.Host(1), program, "sidecar", "--sample", "1", "--planner", planner),
		Start(t, n.Host(2), program, "job", "--sample", "1", "--planner", planner),
	}
	count := hosts.Program{psjob, "--json", "--model", "count", "--steps", "40"}
	mine := hosts.Program{psjob, "--json"}
	j := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(3, mine), Workers: hosts.Repeat(3, count)}
	r := require.Value(j.Run(ctx))(t)
	for _, s := range all {
		// It began again, as the same process under its name, for the sake of the
		// runtime's monitor thread.
		if name, settings := started(t, s.Process.Pid()); name != "psidecar" || !strings.Contains(settings, "GODEBUG=schedtrace=") {
			t.Errorf("%s: the process is called %q, its environment is %q", s.Host.Name, name, settings)
		}
		// Its own connections to the planner are left alone, in the job's cgroup too.
		if n, err := s.Metric(ctx, "psidecar_proxy_past_mesh_total"); err != nil || n != 0 {
			t.Errorf("%s: %v connections went past the mesh, want none; %v", s.Host.Name, n, err)
		}
		// As a user of this host sees it.
		var out, errs bytes.Buffer
		cmd := exec.Command(program, "status", "--json")
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := s.Host.Run(ctx, cmd); err != nil {
			t.Fatal(err, errs.String())
		}
		var status struct {
			Agent page.Agent
			Jobs  []page.Job
			Proxy *proxy.State
		}
		require.NoError(t, json.Unmarshal(out.Bytes(), &status))
		if len(status.Jobs) != 1 || status.Jobs[0].Workers != 3 || status.Jobs[0].Servers != 3 {
			t.Errorf("%s: status knows of jobs %+v", s.Host.Name, status.Jobs)
		}
		// Its server and worker to those of the other hosts at the least,
		// and as many from there.
		if p := status.Proxy; p == nil || p.Carried < 8 {
			t.Errorf("%s: status knows of a proxy %+v", s.Host.Name, p)
		}
		if p := status.Agent.Planner; p == nil || !p.Connected {
			t.Errorf("%s: status knows of a planner %+v", s.Host.Name, p)
		}
		if sent, err := s.Metric(ctx, "psidecar_proxy_bytes_total"); err != nil || sent == 0 {
			t.Errorf("%s: %v bytes carried, %v", s.Host.Name, sent, err)
		}
	}
	var fleet page.Agent
	if err := all[0].Get(ctx, PlannerPage, "/api/v1/agent", &fleet); err != nil || len(fleet.Hosts) != 3 {
		t.Errorf("%d hosts report to the planner, want 3; %v", len(fleet.Hosts), err)
	}
	checkPlanner(t, all[0], r)
	for i := range all {
		s := all[len(all)-1-i] // the planner last
		s.Stop(t)
		if n := strings.Count(s.Log(), "msg=ended"); n != 1 {
			t.Errorf("%s says %d times that it has ended:\n%s", s.Host.Name, n, s.Log())
		}
	}
}

// checkPlanner checks that the agents counted what the workers report to have used, though the
// connections go to the proxies, and that the planner knows it.
func checkPlanner(t *testing.T, s *Sidecar, r *hosts.Running) {
	t.Helper()
	var said uint64
	for _, w := range r.Workers {
		var report struct{ Pushes, Pulls uint64 }
		if err := json.Unmarshal(w.Stdout.Bytes(), &report); err != nil || report.Pulls == 0 {
			t.Fatalf("worker %d prints %s, %v", w.Index, w.Stdout.Bytes(), err)
		}
		said += report.Pushes + report.Pulls
	}
	var jobs page.Jobs
	require.Await(t, fmt.Sprintf("the planner knows of %d accesses", said), func() error {
		require.NoError(t, s.Get(t.Context(), PlannerPage, "/api/v1/jobs", &jobs))
		if len(jobs.Jobs) != 1 || jobs.Jobs[0].Accesses != said {
			return fmt.Errorf("it knows of %+v", jobs.Jobs)
		}
		return nil
	})
	if j := jobs.Jobs[0]; j.LeftHostBytes == 0 || j.LeftHostBytes >= j.Bytes {
		t.Errorf("%d of %d bytes left their hosts", j.LeftHostBytes, j.Bytes)
	}
}

// started returns what a process is called, and the environment that it began with.
func started(t *testing.T, pid int) (name, environ string) {
	t.Helper()
	read := func(file string) string {
		text := require.Value(os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file)))(t)
		return string(text)
	}
	return strings.TrimSpace(read("comm")), strings.ReplaceAll(read("environ"), "\x00", " ")
}

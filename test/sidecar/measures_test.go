package sidecar

import (
	"context"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestMeasuresThatDoNotHold: up --threshold without certificates and --insecure
// carries a job directly, and jobs on loopback not at all; status, the interface
// and the planner say so, and what to do.
func TestMeasuresThatDoNotHold(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := Start(t, n.Host(0), program, "sidecar", "--insecure=false", "--planner-listen", "127.0.0.1:"+strconv.Itoa(Planner), "--threshold", "0.99")
	mine := hosts.Program{psjob, "--model", "count", "--steps", "1000000"}
	running, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(2, mine), Workers: hosts.Repeat(2, mine)}.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); running.Wait() }() // which is not meant to end by itself
	off := func(of []page.Job, where, reason string) bool {
		return slices.ContainsFunc(of, func(j page.Job) bool {
			at := slices.IndexFunc(j.Measures, func(l measure.Line) bool { return l.Measure == measure.Threshold })
			return at >= 0 && strings.HasPrefix(j.Name, where) && j.Measures[at].State == measure.Off && j.Measures[at].Setting == "--threshold 0.99" &&
				slices.ContainsFunc(j.Measures[at].Not, func(g measure.Gap) bool { return g.Reason == reason && g.Do != "" })
		})
	}
	first := n.Host(0).IPv4.String()
	var jobs, planned page.Jobs
	for end := time.Now().Add(patience); !off(jobs.Jobs, first, "not_configured") || !off(planned.Jobs, first, "not_configured"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the agent says %+v, the planner %+v", jobs.Jobs, planned.Jobs)
		}
		for port, into := range map[int]*page.Jobs{Page: &jobs, PlannerPage: &planned} {
			if err := s.Get(ctx, port, "/api/v1/jobs", into); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, port := range []int{Page, PlannerPage} {
		var out strings.Builder
		cmd := exec.Command(program, "status", "--agent", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		cmd.Stdout = &out
		if err := s.Host.Run(ctx, cmd); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); !strings.Contains(text, "threshold: off (flags: --threshold 0.99)") || !strings.Contains(text, "links to other hosts need TLS or --insecure") {
			t.Errorf("status of port %d says:\n%s", port, text)
		}
	}
	// Another job, of this host alone and at its loopback address. The agent finds it in the
	// same cgroup.
	// Another job, of this host alone and at its loopback address.
	local := exec.Command(psjob, "local", "--model", "count", "--steps", "1000000")
	p, err := s.Host.StartIn("job", local)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		<-p.Done()
	}()
	for end := time.Now().Add(patience); !off(jobs.Jobs, "127.0.0.1", "loopback"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("of a job on loopback the agent says %+v", jobs.Jobs)
		}
		if err := s.Get(ctx, Page, "/api/v1/jobs", &jobs); err != nil {
			t.Fatal(err)
		}
	}
}

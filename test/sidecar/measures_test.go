package sidecar

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	s := Start(t, n.Host(0), program, "sidecar", "--insecure=false", "--planner-listen", "127.0.0.1:"+strconv.Itoa(Planner), "--threshold", "0.99")
	mine := hosts.Program{psjob, "--model", "count", "--steps", "1000000"}
	running, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(2, mine), Workers: hosts.Repeat(2, mine)}.Start(ctx)
	require.NoError(t, err)
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
	require.Await(t, "agent and planner say that the threshold is off", func() error {
		for port, into := range map[int]*page.Jobs{Page: &jobs, PlannerPage: &planned} {
			require.NoError(t, s.Get(ctx, port, "/api/v1/jobs", into))
		}
		if !off(jobs.Jobs, first, "not_configured") || !off(planned.Jobs, first, "not_configured") {
			return fmt.Errorf("the agent says %+v, the planner %+v", jobs.Jobs, planned.Jobs)
		}
		return nil
	})
	for _, port := range []int{Page, PlannerPage} {
		var out strings.Builder
		cmd := exec.Command(program, "status", "--agent", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		cmd.Stdout = &out
		require.NoError(t, s.Host.Run(ctx, cmd))
		if text := out.String(); !strings.Contains(text, "threshold: off (flags: --threshold 0.99)") || !strings.Contains(text, "links to other hosts need TLS or --insecure") {
			t.Errorf("status of port %d says:\n%s", port, text)
		}
	}

	// Another job, of this host alone and at its loopback address.
	local := exec.Command(psjob, "local", "--model", "count", "--steps", "1000000")
	p := require.Value(s.Host.StartIn("job", local))(t)
	defer func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		<-p.Done()
	}()
	require.Await(t, "the agent says why it is off for a job on loopback", func() error {
		require.NoError(t, s.Get(ctx, Page, "/api/v1/jobs", &jobs))
		if !off(jobs.Jobs, "127.0.0.1", "loopback") {
			return fmt.Errorf("it says %+v", jobs.Jobs)
		}
		return nil
	})
}

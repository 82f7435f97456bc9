package watch

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// An agent that could not read what a job sent, for longer than a job may be silent,
// says so, and does not take the job for one that stands still.
func TestAgentFallsBehind(t *testing.T) {
	require.BPF(t)
	psjob, psidecar := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}, hoststest.BuildJob(t, "cmd/psidecar")
	net := hoststest.New(t, hosts.Config{Hosts: 1})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a := startAgent(t, psidecar, "--cgroup", net.Cgroup(), "--ring-size", "65536")
	defer a.stop(t)
	worker := append(append(hosts.Program{}, psjob...), "--model", "count", "--steps", "1000000", "--count-compute", "20ms")
	j := hosts.Job{Scheduler: psjob, Servers: hosts.Repeat(2, psjob), Workers: hosts.Repeat(2, worker), Hosts: net.Hosts()}
	running := require.Value(j.Start(ctx))(t)
	defer func() {
		for _, n := range running.Nodes() {
			_ = n.Signal(unix.SIGKILL)
		}
		_ = running.Wait()
	}()
	var last page.Job
	await := func(what string, ctx context.Context, right func() bool) bool {
		for ctx.Err() == nil {
			var jobs page.Jobs
			if err := a.get(ctx, "/api/v1/jobs", nil, &jobs); err == nil && len(jobs.Jobs) == 1 {
				if last = jobs.Jobs[0]; right() {
					t.Logf("%s: %s, %q, %q", what, last.State, last.What, last.Remarks)
					return true
				}
			}
			sleep(ctx, 20*time.Millisecond)
		}
		return false
	}
	goesOn := func() bool { return last.State == page.Running && last.StepsPerSecond > 0 && last.Remarks == nil }
	blind := func() bool {
		return last.State == page.Running && slices.ContainsFunc(last.Remarks, func(r string) bool {
			return strings.Contains(r, "does not keep up") || strings.Contains(r, "behind")
		})
	}
	for told := false; !told; {
		if !await("at first", ctx, goesOn) {
			t.Fatalf("the job does not go on: %+v\n%s", last, &a.log)
		}
		require.NoError(t, a.cmd.Process.Signal(unix.SIGSTOP))
		sleep(ctx, 7*time.Second) // longer than it takes until a job is said to stand still
		require.NoError(t, a.cmd.Process.Signal(unix.SIGCONT))
		round, end := context.WithTimeout(ctx, 10*time.Second) // it is shown for some seconds: next time, if that was missed
		told = await("behind", round, blind)
		end()
	}
	if !await("afterwards", ctx, goesOn) {
		t.Fatalf("the agent does not see the job again: %+v\n%s", last, &a.log)
	}
}

package codecs

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// Proxies that sum only what somebody asks for sum a job's pushes once the planner says so,
// and status says that it was the planner. A rule for some keys alone leaves the others be.
func TestPlannerHasPushesSummed(t *testing.T) {
	c := counted{workers: 4, keys: 1500, width: 16, steps: 60, job: []string{"--count-most", "50000"},
		sidecar: []string{"--handler", "add", "--aggregate", "asked", "--aggregate-wait", "2s"}}
	apply := func(args ...string) func([]*sidecar.Sidecar) {
		return func(all []*sidecar.Sidecar) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, build(t, "cmd/psidecar"), append([]string{"plan", "aggregate", "apply", "--job", all[1].Address(9091), "--ahead", "--act",
				"--planner", all[0].Address(sidecar.Planner)}, args...)...)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := all[0].Host.Run(ctx, cmd); err != nil || !strings.Contains(out.String(), "accepted by 1 proxy") {
				t.Fatalf("%v: %v: %s", cmd.Args, err, out.String())
			}
		}
	}
	seen := ""
	c.beside = func(all []*sidecar.Sidecar, running *hosts.Running) {
		require.Eventually(t, "sums are on, or the job has ended", func() bool {
			select {
			case <-running.Workers[0].Process.Done():
				return true
			default:
			}
			state := require.Value(all[0].Connections(t.Context()))(t)
			for _, l := range state.Measures {
				if l.Measure == measure.Aggregate && l.On > 0 {
					seen = l.String()
				}
			}
			return seen != ""
		})
	}
	c.ready = apply("--form", "host")
	summed := c.do(t)
	t.Logf("%s: %v", seen, summed)
	if a := summed.aggregate; a.Carried == 0 || a.Lost > 0 || !strings.Contains(seen, "(planner: aggregate host)") {
		t.Errorf("status says %q; %+v", seen, a)
	}
	c.ready, c.beside, c.steps = apply("--form", "host", "--keys", "0-9"), nil, 20
	if a := c.do(t).aggregate; a.Carried > 0 || a.Passed[aggregate.Unwanted] == 0 {
		t.Errorf("with a rule for other keys: %+v", a)
	}
}

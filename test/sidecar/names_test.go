package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// named is two hosts with sidecars, the first of which has the planner of both, and jobs that
// say what they are called. Owners may say that and a threshold, and nothing else.
type named struct {
	t              *testing.T
	program, psjob string
	hosts          []*hosts.Host
	sidecars       []*Sidecar
}

// newNamed makes hosts and sidecars. groups are cgroups that are watched besides the usual one.
func newNamed(t *testing.T, groups ...string) *named {
	t.Helper()
	require.Root(t)
	require.BPF(t)
	n := &named{t: t, program: hoststest.BuildJob(t, "cmd/psidecar"), psjob: hoststest.BuildJob(t, "cmd/psjob")}
	n.hosts = hoststest.New(t, hosts.Config{Hosts: 2}).Hosts()
	store := filepath.Join(t.TempDir(), "store")
	for i, h := range n.hosts {
		flags := []string{"--planner-store", store, "--allow-annotations", "job,threshold"}
		if i > 0 {
			flags = []string{"--planner", n.sidecars[0].Address(Planner), "--allow-annotations", "job,threshold"}
		}
		for _, g := range groups {
			group := require.Value(h.Group(g))(t)
			flags = append(flags, "--cgroup", group)
		}
		n.sidecars = append(n.sidecars, Start(t, h, n.program, "sidecar", flags...))
	}
	return n
}

// job starts a job that counts, with these variables in its environment, until end ends it,
// which may be called again. Its scheduler is on the first host at port.
func (n *named) job(group string, port int, variables ...string) (end func()) {
	n.t.Helper()
	mine := hosts.Program{n.psjob, "--json"}
	count := append(slices.Clone(mine), "--model", "count", "--count-late", "--async", "--count-compute", "3ms", "--steps", "1000000")
	ctx, cancel := context.WithCancel(n.t.Context())
	r, err := hosts.Job{Hosts: n.hosts, Group: group, Port: port, Scheduler: mine, Servers: hosts.Repeat(2, mine), Workers: hosts.Repeat(2, count), Env: variables}.Start(ctx)
	if err != nil {
		cancel()
		n.t.Fatal(err)
	}
	var over bool
	end = func() {
		if !over {
			over = true
			cancel()
			r.Wait() // it was killed
		}
	}
	n.t.Cleanup(end)
	return end
}

// await waits until ok returns no error, and fails the test with its last one.
func (n *named) await(what string, ok func() error) {
	n.t.Helper()
	require.Await(n.t, what, ok)
}

// jobAt returns a job, named by its scheduler, as the agent or planner at that port of a
// sidecar knows it.
func (n *named) jobAt(s *Sidecar, port int, scheduler string) (page.Job, error) {
	var known page.Jobs
	if err := s.Get(n.t.Context(), port, "/api/v1/jobs", &known); err != nil {
		return page.Job{}, err
	}
	at := slices.IndexFunc(known.Jobs, func(j page.Job) bool { return j.Name == scheduler })
	if at < 0 {
		return page.Job{}, fmt.Errorf("no job %s among %d", scheduler, len(known.Jobs))
	}
	return known.Jobs[at], nil
}

// called waits until both agents and the planner call a job by a name.
func (n *named) called(scheduler, name string) {
	n.t.Helper()
	for _, at := range []struct {
		sidecar *Sidecar
		port    int
	}{{n.sidecars[0], Page}, {n.sidecars[1], Page}, {n.sidecars[0], PlannerPage}} {
		n.await("the name "+name, func() error {
			j, err := n.jobAt(at.sidecar, at.port, scheduler)
			if err == nil && j.Called != name {
				err = fmt.Errorf("%s, port %d, calls it %q", at.sidecar.Host.Name, at.port, j.Called)
			}
			return err
		})
	}
}

// jobLabel matches the job label of a line of metrics.
var jobLabel = regexp.MustCompile(`[{,]job="([^"]*)"`)

// series returns the values of the job label in the metrics at a port of a sidecar.
func (n *named) series(s *Sidecar, port int) map[string]bool {
	n.t.Helper()
	body := require.Value(s.Ask(n.t.Context(), http.MethodGet, port, "/metrics", ""))(n.t)
	labels := map[string]bool{}
	for _, m := range jobLabel.FindAllStringSubmatch(string(body), -1) {
		labels[m[1]] = true
	}
	return labels
}

// TestThreeRunsOfOneName: a job runs three times, each with another scheduler, under one name.
// Its metrics are one series, rules that were set for its name before the first run hold in
// all, as does what it asks for itself, and its history has three runs.
func TestThreeRunsOfOneName(t *testing.T) {
	n := newNamed(t)
	psidecar := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), n.program, args...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := n.hosts[0].Run(t.Context(), cmd); err != nil {
			t.Fatalf("psidecar %v: %v\n%s", args, err, out.String())
		}
		return out.String()
	}
	plan := func(args ...string) string {
		t.Helper()
		return psidecar(append(args, "--planner", n.sidecars[0].Address(Planner))...)
	}
	plan("plan", "codecs", "set", "--job", "ctr", "--unchanged", "--keys", "0-9223372036854775807", "--act", "--ahead")
	for run := range 3 {
		port := 9091 + run
		scheduler := n.hosts[0].Address(port)
		end := n.job("job", port, "PSIDECAR_JOB=ctr", "PSIDECAR_THRESHOLD=0.5", "PSIDECAR_MOVE=true")
		n.called(scheduler, "ctr")
		for _, s := range n.sidecars {
			n.await("the rules of the name", func() error {
				j, err := n.jobAt(s, Page, scheduler)
				for _, l := range j.Measures {
					switch {
					case l.Measure == measure.Unchanged && (l.On == 0 || l.From != "planner"),
						l.Measure == measure.Threshold && (l.On == 0 || l.From != measure.Asked):
						return fmt.Errorf("in run %d %s has %s: %s", run+1, s.Host.Name, l.Measure, l.String())
					}
				}
				if err == nil && (len(j.Remarks) != 1 || !strings.Contains(j.Remarks[0], "PSIDECAR_MOVE") || !strings.Contains(j.Remarks[0], "allows job,threshold")) {
					err = fmt.Errorf("its remarks are %q", j.Remarks)
				}
				return err
			})
			n.await("one series", func() error {
				if got := n.series(s, Page); !got["ctr"] || len(got) != 1 {
					return fmt.Errorf("in run %d %s has those of %v", run+1, s.Host.Name, got)
				}
				return nil
			})
		}
		if got := n.series(n.sidecars[0], PlannerPage); !got["ctr"] || len(got) != 1 {
			t.Errorf("in run %d the planner has series of %v", run+1, got)
		}
		n.await("the run in the history", func() error {
			var found page.Runs
			err := n.sidecars[0].Get(t.Context(), PlannerPage, "/api/v1/runs?job=ctr", &found)
			switch {
			case err != nil:
				return err
			case len(found.Jobs) != 1 || found.Jobs[0].Name != "ctr" || len(found.Jobs[0].Runs) != run+1:
				return fmt.Errorf("it is %+v", found)
			}
			r := found.Jobs[0].Runs[0]
			if r.Job != scheduler || !r.Running || r.Steps < 10 || r.StepsPerSecond <= 0 || r.BytesPerStep <= 0 || r.Workers != 2 || r.Servers != 2 {
				return fmt.Errorf("the newest run is %+v", r)
			}
			return nil
		})
		end()
		n.await("its end", func() error {
			j, err := n.jobAt(n.sidecars[0], PlannerPage, scheduler)
			if err == nil && j.State != page.Over {
				err = fmt.Errorf("it is %s", j.State)
			}
			return err
		})
	}
	var byName page.Heatmap
	if err := n.sidecars[0].Get(t.Context(), Page, "/api/v1/heatmap?job=ctr", &byName); err != nil || byName.Job != n.hosts[0].Address(9093) {
		t.Errorf("by its name the job is %s, %v", byName.Job, err)
	}
	if out := psidecar("runs", "--job", "ctr", "--planner-http", "http://"+n.sidecars[0].Address(PlannerPage)); !strings.Contains(out, "job ctr\n") || strings.Count(out, "\n") != 5 {
		t.Errorf("psidecar runs says %q", out)
	}
	if out := plan("plan", "codecs", "show", "--job", "ctr"); !strings.Contains(out, "job ctr: ") {
		t.Errorf("psidecar plan codecs show says %q", out)
	}
}

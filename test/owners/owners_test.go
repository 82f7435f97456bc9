// Package owners has jobs named, and treated, as what owns their pods, their pods'
// annotations and their processes' environment say, in a cluster whose API server,
// controllers and scheduler are Kubernetes' own: test/kubernetes runs it with its own.
// The nodes are hosts of this machine, and the test is their kubelets.
package owners

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// fleet is two nodes of a cluster, whose agents look after pods of a label.
type fleet struct {
	cluster
	program, psjob string
	hosts          []*hosts.Host
	port           int // of the scheduler that comes next
}

// sidecars are those of a part of the test, the first with the planner of both.
type sidecars struct {
	fleet
	all     []*sidecar.Sidecar
	watched int // jobs
}

// A training is a job in pods that something owns.
type training struct {
	name        string // of the owner
	kind        kind
	unlabelled  bool
	annotations map[string]string
	variables   []string
	count       []string // of psjob's flags
	leftAlone   bool     // nobody watches it

	scheduler string // once it runs
	pods      map[string]pod
}

func TestNamesAndPolicy(t *testing.T) {
	c := newCluster(t)
	require.Root(t)
	require.BPF(t)
	c.add(pyTorchJobs)
	f := &fleet{cluster: *c, program: hoststest.BuildJob(t, "cmd/psidecar"), psjob: hoststest.BuildJob(t, "cmd/psjob"), port: 9091}
	f.hosts = hoststest.New(t, hosts.Config{Hosts: 2, Names: []string{"node-1", "node-2"}}).Hosts()
	for _, h := range f.hosts {
		c.forward(h)
	}
	t.Run("asked for", f.asked)
	t.Run("not allowed", f.bounded)
	t.Run("moved", f.moved)
}

func (f *fleet) start(t *testing.T, flags ...string) *sidecars {
	t.Helper()
	s := &sidecars{fleet: *f}
	s.t = t
	for i, h := range f.hosts {
		own := append([]string{"--kubernetes", "--kubernetes-node", h.Name, "--kubernetes-selector", "psidecar.io/job=true"}, flags...)
		if i > 0 {
			own = append(own, "--planner", s.all[0].Address(sidecar.Planner))
		}
		s.all = append(s.all, sidecar.Start(t, h, f.program, "sidecar", own...))
	}
	return s
}

// asked: each job is called as its owner, or as it says, and has the measures that it
// asks for, and no other. What it says wrongly is an event on its pods and a line in
// status, and the rest holds.
func (f *fleet) asked(t *testing.T) {
	s := f.start(t, "--allow-annotations", "job,codec,threshold,observe,aggregate", "--aggregate", "asked", "--handler", "add")
	all := []*training{
		{name: "ctr", kind: job},
		{name: "nightly", kind: cronJob, unlabelled: true, annotations: map[string]string{"observe": "true"}},
		{name: "embedding", kind: statefulSet, annotations: map[string]string{"threshold": "0.5"}},
		{name: "ranking", kind: pyTorchJob, annotations: map[string]string{"codec": "none"}},
		{name: "run-17", kind: job, annotations: map[string]string{"job": "search", "threshold": "1.5", "colour": "blue"}, variables: []string{"PSIDECAR_JOB=unheard"}},
		{name: "alone", kind: bare, annotations: map[string]string{"aggregate": "host"}, variables: []string{"PSIDECAR_JOB=byhand"},
			count: []string{"--count-keys", "2000", "--count-batch", "2000", "--value-length", "8"}},
		{name: "hidden", kind: job, annotations: map[string]string{"observe": "false"}, leftAlone: true},
	}
	for _, x := range all {
		s.run(x)
	}
	for i, want := range []string{"ads/ctr", "ads/nightly", "ads/embedding", "ads/ranking", "ads/search", "ads/byhand"} {
		s.called(all[i], want)
		s.measured(all[i], measure.Threshold, want == "ads/embedding")
		s.measured(all[i], measure.Compact, want != "ads/ranking")
		s.measured(all[i], measure.Aggregate, want == "ads/byhand")
	}
	s.unknown(all[6])
	wrong := []string{`psidecar.io/threshold: "1.5" is ignored: want a share from 0 (off) to below 1`, "unknown setting psidecar.io/colour: want one of job, observe"}
	for i, x := range all {
		var says []string
		if i == 4 {
			says = wrong
		}
		s.says(x, says...)
	}
}

// bounded: what the administrator does not allow is ignored, and said.
func (f *fleet) bounded(t *testing.T) {
	s := f.start(t, "--aggregate", "asked", "--handler", "add")
	x := &training{name: "eager", kind: statefulSet, annotations: map[string]string{"job": "modest", "codec": "none", "threshold": "0.5", "aggregate": "host", "observe": "false", "move": "true"}}
	s.run(x)
	s.called(x, "ads/modest")
	s.measured(x, measure.Compact, false)
	s.measured(x, measure.Threshold, false)
	s.measured(x, measure.Aggregate, false)
	var says []string
	for _, key := range []string{"threshold", "aggregate", "observe", "move"} {
		says = append(says, fmt.Sprintf("psidecar.io/%s: %q is ignored: the administrator allows codec,job", key, x.annotations[key]))
	}
	s.says(x, says...)
}

// moved: keys of a job that asks for it move, beside a planner that moves nothing by
// itself, and those of another do not.
func (f *fleet) moved(t *testing.T) {
	s := f.start(t, "--act", "--handler", "add", "--allow-annotations", "job,move", "--planner-decide-every", "1s",
		"--planner-store", filepath.Join(t.TempDir(), "plans"))
	wander := []string{"--count-keys", "20000", "--count-batch", "400", "--count-favourites", "800", "--value-length", "32", "--count-common", "0.05", "--count-wander", "100"}
	moving := &training{name: "moving", kind: job, annotations: map[string]string{"move": "true"}, count: wander}
	staying := &training{name: "staying", kind: job, annotations: map[string]string{"move": "soon"}, count: wander}
	s.run(moving)
	s.run(staying)
	s.called(moving, "ads/moving")
	s.called(staying, "ads/staying")
	s.await("keys to move", func() error {
		if n := s.keysMoved(moving); n == 0 {
			return errors.New(s.plan(moving))
		}
		return nil
	})
	s.await("moves to be proposed", func() error {
		if said := s.plan(staying); !strings.Contains(said, "proposed") {
			return errors.New(said)
		}
		return nil
	})
	if n := s.keysMoved(staying); n > 0 {
		t.Errorf("%d keys of a job that does not ask for it have moved", n)
	}
	s.says(moving)
	s.says(staying, `psidecar.io/move: "soon" is ignored: want true or false`)
}

// run has the cluster make a job's pods, and starts its processes in their cgroups, until
// the part ends. They take as long to begin as the agents do to find them.
func (s *sidecars) run(x *training) {
	s.t.Helper()
	x.kind(&s.cluster, x.name, !x.unlabelled, x.annotations)
	x.pods = s.cluster.pods(x.name)
	x.scheduler = s.hosts[0].Address(s.port)
	node := hosts.Program{s.psjob, "--json"}
	count := append(slices.Clone(node), "--model", "count", "--count-late", "--async", "--count-compute", "20ms", "--steps", "1000000")
	begin := filepath.Join(s.t.TempDir(), "begin")
	within := func(h *hosts.Host, p hosts.Program) hosts.Program {
		enter := `echo $$ >"$0/cgroup.procs" && exec sh -c 'while ! [ -e "$0" ]; do sleep 0.1; done; exec "$@"' "$@"`
		return append(hosts.Program{"/bin/sh", "-c", enter, s.cgroup(h, x.pods[h.Name]), begin}, p...)
	}
	var servers, workers []hosts.Program
	for i := range 4 {
		if h := s.hosts[i%2]; i < 2 {
			servers = append(servers, within(h, node))
		}
		workers = append(workers, within(s.hosts[i%2], append(slices.Clone(count), x.count...)))
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	r, err := hosts.Job{Hosts: s.hosts, Port: s.port, Scheduler: within(s.hosts[0], node), Servers: servers, Workers: workers, Env: x.variables}.Start(ctx)
	if err != nil {
		cancel()
		s.t.Fatal(err)
	}
	s.port++
	s.t.Cleanup(func() {
		cancel()
		r.Wait() // it was killed
	})
	if !x.leftAlone {
		s.watched++
	}
	for _, one := range s.all {
		s.await("listeners for "+x.name+" on "+one.Host.Name, func() error {
			if n, err := one.Metric(s.t.Context(), "psidecar_intercept_listeners"); err != nil || int(n) != 2*s.watched {
				return fmt.Errorf("%v for %d jobs, %v", n, s.watched, err)
			}
			return nil
		})
	}
	require.NoError(s.t, os.WriteFile(begin, nil, 0o600))
}

// cgroup returns the one of a pod's container, as the kubelet would lay it out.
func (s *sidecars) cgroup(h *hosts.Host, p pod) string {
	s.t.Helper()
	top := require.Value(h.Group("job"))(s.t)
	dir := filepath.Join(top, "kubepods", "pod"+p.uid, "job")
	require.NoError(s.t, os.MkdirAll(dir, 0o755))
	s.t.Cleanup(func() {
		for in := dir; in != top; in = filepath.Dir(in) {
			s.await("the last process of "+in+" to be gone", func() error {
				if err := os.Remove(in); errors.Is(err, syscall.EBUSY) {
					if inside, _ := os.ReadDir(in); slices.ContainsFunc(inside, os.DirEntry.IsDir) {
						return nil // another pod's
					}
					return err
				}
				return nil
			})
		}
	})
	return dir
}

// at returns a job as who serves at a port of a sidecar knows it.
func (s *sidecars) at(one *sidecar.Sidecar, port int, x *training) (page.Job, error) {
	var known page.Jobs
	if err := one.Get(s.t.Context(), port, "/api/v1/jobs", &known); err != nil {
		return page.Job{}, err
	}
	for _, j := range known.Jobs {
		if j.Name == x.scheduler {
			return j, nil
		}
	}
	return page.Job{}, fmt.Errorf("%s does not know the job of %s, but %d others", one.Host.Name, x.name, len(known.Jobs))
}

// called waits until both agents and the planner call a job so.
func (s *sidecars) called(x *training, name string) {
	s.t.Helper()
	for _, at := range []struct {
		one  *sidecar.Sidecar
		port int
	}{{s.all[0], sidecar.Page}, {s.all[1], sidecar.Page}, {s.all[0], sidecar.PlannerPage}} {
		s.await("the name "+name, func() error {
			j, err := s.at(at.one, at.port, x)
			if err == nil && j.Called != name {
				err = fmt.Errorf("%s, port %d, calls it %q", at.one.Host.Name, at.port, j.Called)
			}
			return err
		})
	}
}

// measured waits until a measure holds for a job on both hosts, as its owner asks, or
// until it has connections that could have it and holds on none.
func (s *sidecars) measured(x *training, name string, on bool) {
	s.t.Helper()
	for _, one := range s.all {
		s.await("what is said of "+name, func() error {
			j, err := s.at(one, sidecar.Page, x)
			if err != nil {
				return err
			}
			carried := slices.ContainsFunc(j.Measures, func(l measure.Line) bool { return l.Measure == measure.Carry && l.On > 0 })
			at := slices.IndexFunc(j.Measures, func(l measure.Line) bool { return l.Measure == name })
			switch {
			case !carried || at < 0:
				return fmt.Errorf("%s carries nothing of %s: %v", one.Host.Name, x.name, j.Measures)
			case (j.Measures[at].On > 0) != on:
				return fmt.Errorf("on %s of %s it is %s %v", one.Host.Name, x.name, j.Measures[at].String(), j.Measures[at].Not)
			case on && x.annotations[name] != "" && j.Measures[at].From != measure.Asked:
				return fmt.Errorf("on %s %q asked for it of %s", one.Host.Name, j.Measures[at].From, x.name)
			}
			return nil
		})
	}
}

// unknown checks that no agent watches a job, when all others are known.
func (s *sidecars) unknown(x *training) {
	s.t.Helper()
	for _, one := range s.all {
		if j, err := s.at(one, sidecar.Page, x); err == nil {
			s.t.Errorf("%s watches the job of %s, %s", one.Host.Name, x.name, j.State)
		}
	}
}

// says waits until each pod of a job has an event for each of these, no more, and status
// a line on each host and at the planner.
func (s *sidecars) says(x *training, all ...string) {
	s.t.Helper()
	for _, p := range x.pods {
		s.told(p, all...)
	}
	for _, part := range all {
		for _, at := range []string{s.all[0].Address(sidecar.Page), s.all[1].Address(sidecar.Page), s.all[0].Address(sidecar.PlannerPage)} {
			s.await("a line in status", func() error {
				if said := s.tells("status", "--links", "--agent", "http://"+at); !strings.Contains(said, part) {
					return fmt.Errorf("at %s none says %q:\n%s", at, part, said)
				}
				return nil
			})
		}
	}
}

// tells runs psidecar on the first host.
func (s *sidecars) tells(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, args...)
	var out hosts.Log
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := s.hosts[0].Run(ctx, cmd); err != nil {
		s.t.Fatalf("psidecar %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// plan is what the planner says of a job's keys.
func (s *sidecars) plan(x *training) string {
	s.t.Helper()
	return s.tells("plan", "show", "--job", x.scheduler, "--planner", s.all[0].Address(sidecar.Planner))
}

// keysMoved is how many of a job's keys have moved.
func (s *sidecars) keysMoved(x *training) (n uint64) {
	s.t.Helper()
	for _, one := range s.all {
		state := require.Value(one.Connections(s.t.Context()))(s.t)
		for _, j := range state.Jobs {
			if j.Job == x.scheduler {
				n += j.Moved
			}
		}
	}
	return n
}

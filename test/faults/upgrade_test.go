package faults

import (
	"context"
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestUpgrade is the sequence of docs/deploying.md while a job trains that repeats
// nothing. What it comes to is exact, to the last bit.
func TestUpgrade(t *testing.T) {
	for name, run := range map[string]func(*testing.T, *fleet) (r *run, exact func()){
		"count": func(_ *testing.T, f *fleet) (*run, func()) {
			r := f.start(f.unending(f.counting(50)))
			return r, func() { r.exact() }
		},
		"recommender": recommending,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second})
			r, exact := run(t, f)
			r.training()
			r.upgrade(len(f.sidecars))
			exact()
			f.asBefore()
		})
	}
}

// upgrade is the sequence of docs/deploying.md: on one host after the other, the
// proxy is replaced, then the agent, and in the end the planner. Nothing goes past
// the proxies meanwhile.
func (r *run) upgrade(hosts int) {
	f := r.f
	f.t.Helper()
	for i, s := range f.sidecars[:hosts] {
		if r.over() && i > 1 {
			break // on a busy machine
		}
		f.replace(s, s.proxy)
		r.through(s)
		f.inOrder(s)
		f.replace(s, s.agent)
	}
	f.replace(f.sidecars[0], f.planner)
	f.await("the planner to be ready", func() error {
		_, err := hoststest.Get(f.planner.Host, plannerHTP, "/readyz")
		return err
	})
	f.allLinked()
}

// TestPodsReplaced is what a rolling update of the DaemonSet does: agent and
// proxy of a host end together, and the next ones come later. Connections that
// are made in between go direct, and no message is lost.
func TestPodsReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{grace: 10 * time.Second})
	r := f.start(f.unending(f.counting(50)))
	r.training()
	for i, s := range f.sidecars {
		if r.over() && i > 1 {
			break // on a busy machine
		}
		old := []*hosts.Process{s.proxy.Current(), s.agent.Current()}
		for _, which := range []*service{s.agent, s.proxy} {
			which.StayAway(true)
			require.NoError(t, which.signal(syscall.SIGTERM))
		}
		for _, p := range old {
			<-p.Done()
		}
		f.inOrder(s)
		s.agent.StayAway(false)
		s.proxy.StayAway(false)
		f.ready(s)
	}
	r.exact()
	f.asBefore()
}

// recommending starts a recommender network's training in steps: its servers
// add a step's gradients up in any order, and must have the same parameters in
// the end as in a job on one machine without psidecar.
func recommending(t *testing.T, f *fleet) (*run, func()) {
	data := filepath.Join(t.TempDir(), "clicks.txt")
	if out, err := exec.CommandContext(t.Context(), f.programs.psjob, "generate", "--kind", "clicks", "--samples", "2000", "--features", "2000", "--out", data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const steps = 900
	node := hosts.Program{f.programs.psjob, "--json"}
	worker := append(node[:2:2], "--model", "dlrm", "--data", data, "--batch", "8", "--embedding", "4", "--bottom", "8", "--top", "8", "--steps", strconv.Itoa(steps))
	plain := hosts.Job{Scheduler: node, Servers: hosts.Repeat(4, node), Workers: hosts.Repeat(4, worker)}
	across := plain
	across.Hosts = f.net.Hosts()
	r := f.start(across)
	return r, func() {
		t.Helper()
		if <-r.ended; r.err != nil {
			t.Fatal(r.err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		alone := require.Value(plain.Run(ctx))(t)
		got, want := digests(t, r.Running), digests(t, alone)
		if len(want) != 4 || !maps.Equal(got, want) {
			t.Errorf("the servers end with %v, without psidecar with %v", got, want)
		}
		t.Logf("%d steps, the longest %.2f s", steps, r.longest())
	}
}

// digests are those of the servers' parameters, by rank.
func digests(t *testing.T, r *hosts.Running) map[int]string {
	t.Helper()
	all := map[int]string{}
	for _, n := range r.Servers {
		var s struct {
			Rank   int
			Digest string
		}
		if err := json.Unmarshal(n.Stdout.Bytes(), &s); err != nil || s.Digest == "" {
			t.Fatalf("server %d says %q: %v", n.Index, n.Stdout.Bytes(), err)
		}
		all[s.Rank] = s.Digest
	}
	return all
}

// longest returns the longest step of a job that has ended, in seconds.
func (r *run) longest() float64 {
	r.f.t.Helper()
	var all []report
	for _, n := range r.Workers {
		var w report
		if err := json.Unmarshal(n.Stdout.Bytes(), &w); err != nil || w.LongestStep == 0 {
			r.f.t.Fatalf("worker %d says %q: %v", n.Index, n.Stdout.Bytes(), err)
		}
		all = append(all, w)
	}
	return longestStep(all)
}

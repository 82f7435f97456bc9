package watch

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
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

// trial is a job that goes on, beside an agent.
type trial struct {
	net     *hosts.Net
	agent   *watcher
	running *hosts.Running
	ranks   map[*hosts.Node]string // what a node is called
	name    string
}

// await waits until the agent's account of the job is right, and returns it.
func (r *trial) await(t *testing.T, ctx context.Context, right func(*page.Job) bool) page.Job {
	t.Helper()
	var last page.Job
	began := time.Now()
	for ctx.Err() == nil {
		for _, j := range r.agent.Jobs() {
			last = j
			if right(&j) {
				t.Logf("after %.1f s: %s, cause %q: %s", time.Since(began).Seconds(), j.State, j.Cause, j.What)
				return j
			}
		}
		sleep(ctx, 100*time.Millisecond)
	}
	t.Fatalf("the agent says of the job: %s, cause %q, %q; stalls %+v; %v steps/s", last.State, last.Cause, last.What, last.Stalls, last.StepsPerSecond)
	return last
}

// try starts a job on three hosts that trains without end, and returns when it
// goes on. Servers and workers are of one host each.
func try(t *testing.T, ctx context.Context, args func(worker int) []string) *trial {
	t.Helper()
	program := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	r := &trial{net: hoststest.New(t, hosts.Config{Hosts: 3})}
	r.agent = watch(t, r.net.Cgroup())
	j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Hosts: r.net.Hosts()}
	for i := range 3 {
		p := append(hosts.Program{}, program...)
		p = append(p, "--model", "count", "--steps", "1000000", "--count-keys", "2000", "--count-batch", "200", "--lost-after", "10m")
		j.Workers = append(j.Workers, append(p, args(i)...))
	}
	jobs, stop := context.WithCancel(ctx)
	var err error
	if r.running, err = j.Start(jobs); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range r.running.Nodes() {
			_ = n.Signal(unix.SIGCONT)
		}
		stop()
		_ = r.running.Wait() // it was killed
	})
	going := r.await(t, ctx, func(j *page.Job) bool {
		return j.State == page.Running && j.StepsPerSecond > 0 && len(j.Nodes) == 6 &&
			!slices.ContainsFunc(j.Nodes, func(n page.Node) bool { return n.Rank < 0 || n.PID == 0 })
	})
	r.name = going.Name
	r.ranks = map[*hosts.Node]string{}
	for _, n := range going.Nodes {
		for _, p := range r.running.Nodes() {
			if p.Cmd.Process.Pid == n.PID {
				r.ranks[p] = n.Name
			}
		}
	}
	if len(r.ranks) != 6 {
		t.Fatalf("of the job's processes %v are known; nodes %+v", r.ranks, going.Nodes)
	}
	return r
}

func everyStep(args ...string) func(int) []string {
	return func(int) []string { return append([]string{"--count-compute", "20ms"}, args...) }
}

// A server that is stopped: everybody waits for it, and that is said with how
// long, for what, and that it is stopped. When it goes on, so does the job.
func TestStoppedServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := try(t, ctx, everyStep())
	server := r.running.Servers[1]
	require.NoError(t, server.Signal(unix.SIGSTOP))
	name := r.ranks[server]
	j := r.await(t, ctx, func(j *page.Job) bool { return j.State == page.Stalled && j.Cause == name && j.StepsPerSecond == 0 })
	for _, want := range []string{"stalled for ", " waits for " + name, "keys ", "request of ", "stopped by a signal"} {
		if !strings.Contains(j.What, want) {
			t.Errorf("%q is not in %q", want, j.What)
		}
	}
	if j.BytesPerSecond > 1000 || j.Since.IsZero() || len(j.Stalls) == 0 {
		t.Errorf("%v bytes/s, since %v, stalls %+v", j.BytesPerSecond, j.Since, j.Stalls)
	}
	metrics := metricsOf(t, r.agent)
	for _, want := range []string{
		fmt.Sprintf(`psidecar_job_held_up{cause="%s",job="%s"} 1`, name, r.name),
		fmt.Sprintf(`psidecar_job_state{job="%s",state="stalled"} 1`, r.name),
		fmt.Sprintf(`psidecar_stalled_seconds{job="%s",kind="unanswered",on="%s"`, r.name, name),
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	require.NoError(t, server.Signal(unix.SIGCONT))
	r.await(t, ctx, func(j *page.Job) bool { return j.State == page.Running && j.Cause == "" && j.StepsPerSecond > 0 })
}

// A worker that is stopped: the others wait at a barrier, and it is because of
// that one.
func TestStoppedWorker(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := try(t, ctx, everyStep())
	worker := r.running.Workers[2]
	require.NoError(t, worker.Signal(unix.SIGSTOP))
	j := r.await(t, ctx, func(j *page.Job) bool { return j.State == page.Stalled && j.Cause == r.ranks[worker] })
	if !strings.Contains(j.What, "stopped by a signal") {
		t.Errorf("it says %q", j.What)
	}
}

// The same where the workers do not wait for each other: the job goes on, and one
// of them does not.
func TestStoppedWorkerAlone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := try(t, ctx, everyStep("--async"))
	worker := r.running.Workers[0]
	require.NoError(t, worker.Signal(unix.SIGSTOP))
	r.await(t, ctx, func(j *page.Job) bool {
		return j.State == page.Running && j.Cause == r.ranks[worker] && j.StepsPerSecond > 0
	})
}

// A host that is cut off: the sockets say that nothing arrives.
func TestCutLink(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := try(t, ctx, everyStep())
	host := r.running.Servers[1].Host
	require.NoError(t, host.Cut())
	name := r.ranks[r.running.Servers[1]]
	j := r.await(t, ctx, func(j *page.Job) bool {
		return j.State == page.Stalled && strings.Contains(j.Cause, "-"+name) || strings.Contains(j.Cause, r.ranks[r.running.Workers[1]]+"-")
	})
	if !strings.Contains(j.What, "unacknowledged") {
		t.Errorf("it says %q", j.What)
	}
	require.NoError(t, host.Heal())
	r.await(t, ctx, func(j *page.Job) bool { return j.State == page.Running && j.Cause == "" })
}

// A server that answers, but late, as one does whose disk is slow.
func TestSlowServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r := try(t, ctx, everyStep())
	server := r.running.Servers[0]
	ended := make(chan struct{})
	slow, stop := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		for slow.Err() == nil {
			_ = server.Signal(unix.SIGSTOP)
			sleep(slow, 400*time.Millisecond)
			_ = server.Signal(unix.SIGCONT)
			sleep(slow, 20*time.Millisecond)
		}
	}()
	defer func() { stop(); <-ended }()
	j := r.await(t, ctx, func(j *page.Job) bool { return j.Cause == r.ranks[server] && strings.Contains(j.What, "answers late") })
	if j.State != page.Running {
		t.Errorf("the job is %s", j.State)
	}
}

// A worker that is slow: the others wait for it at each step, or leave it behind.
func TestStragglingWorker(t *testing.T) {
	for name, args := range map[string][]string{"synchronous": nil, "asynchronous": {"--async"}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r := try(t, ctx, func(i int) []string {
				compute := "20ms"
				if i == 1 {
					compute = "300ms"
				}
				return append([]string{"--count-compute", compute}, args...)
			})
			r.await(t, ctx, func(j *page.Job) bool {
				return j.State == page.Running && j.Cause == r.ranks[r.running.Workers[1]] && len(j.Stragglers) == 1
			})
		})
	}
}

// A job that is over is said to be, does nothing any more, and does not stand in
// the way of the one that runs.
func TestOverJob(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	program := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	psidecar := hoststest.BuildJob(t, "cmd/psidecar")
	net := hoststest.New(t, hosts.Config{Hosts: 1})
	a := startAgent(t, psidecar, "--cgroup", net.Cgroup())
	defer a.stop(t)
	start := func(port int, steps string) *hosts.Running {
		worker := append(append(hosts.Program{}, program...), "--model", "count", "--steps", steps, "--count-compute", "20ms")
		j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(1, program), Workers: []hosts.Program{worker}, Hosts: net.Hosts(), Port: port}
		running := require.Value(j.Start(ctx))(t)
		return running
	}
	states := func(want ...string) func() bool {
		return func() bool {
			var jobs page.Jobs
			require.NoError(t, a.get(ctx, "/api/v1/jobs", nil, &jobs))
			var got []string
			for _, j := range jobs.Jobs {
				got = append(got, j.State)
				if j.State == page.Over && j.StepsPerSecond+j.BytesPerSecond != 0 {
					t.Fatalf("a job that is over makes %v steps/s and %v bytes/s", j.StepsPerSecond, j.BytesPerSecond)
				}
			}
			return fmt.Sprint(got) == fmt.Sprint(want)
		}
	}
	await := func(what string, f func() bool) {
		t.Helper()
		for !f() {
			if sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
				t.Fatal(what, &a.log)
			}
		}
	}
	require.NoError(t, start(9091, "50").Wait())
	await("the first job is not over", states(page.Over))
	second := start(9092, "1000000")
	defer func() {
		for _, n := range second.Nodes() {
			_ = n.Signal(unix.SIGKILL)
		}
		_ = second.Wait()
	}()
	await("the second job does not run", states(page.Over, page.Running))
	var h page.Heatmap
	if err := a.get(ctx, "/api/v1/heatmap", nil, &h); err != nil || !strings.HasSuffix(h.Job, ":9092") {
		t.Errorf("the heatmap is of %q, %v", h.Job, err)
	}
	third := start(9093, "1000000")
	defer func() {
		for _, n := range third.Nodes() {
			_ = n.Signal(unix.SIGKILL)
		}
		_ = third.Wait()
	}()
	await("the third job does not run", states(page.Over, page.Running, page.Running))
	err := a.get(ctx, "/api/v1/heatmap", url.Values{}, &h)
	if err == nil || !strings.Contains(err.Error(), "there are 2 jobs") || strings.Contains(err.Error(), ":9091") {
		t.Errorf("of two that run: %v", err)
	}
}

// metricsOf returns the agent's metrics as text.
func metricsOf(t *testing.T, w *watcher) string {
	t.Helper()
	answer := httptest.NewRecorder()
	w.Handler(false).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	return answer.Body.String()
}

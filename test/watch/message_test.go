package watch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkMessage measures what psidecar agent costs for each message of a job:
// two workers, two servers, over loopback, ids by chance, for messages of four sizes (the
// larger ones of a step: a push, and the answer of a pull), with every key looked at and with
// the default sampling.
//
//   - agent-us/msg: processor time of the agent's process, user and system, from
//     before the job to after its end, by message that was sent in the job: where
//     a busy machine lets the job send few, what the agent does each second is most of it.
//   - kernel-us/msg: that of its programs, which the job's processes pay.
//   - msg/s: how many messages the job sent in a second.
//   - idle-%core: what the agent takes without a job, percent of one core.
//
// With PSIDECAR_PROFILE a folder, it keeps there a profile of the agent's processor time.
func BenchmarkMessage(b *testing.B) {
	require.BPF(b)
	psjob, psidecar := hoststest.BuildJob(b, "cmd/psjob"), hoststest.BuildJob(b, "cmd/psidecar")
	for _, size := range []struct {
		name         string
		batch, steps int
	}{
		{"100B", 12, 6000}, {"1kB", 160, 4000}, {"10kB", 1660, 1500}, {"100kB", 16600, 200},
	} {
		for _, sample := range []string{"1", "auto"} {
			name := size.name + "/sample=" + sample
			b.Run(name, func(b *testing.B) {
				net := hoststest.New(b, hosts.Config{Hosts: 1})
				const still = 2 * time.Second
				var sum, idle cost
				var messages, wall float64
				for b.Loop() {
					a := startAgent(b, psidecar, "--pprof", "--sample", sample, "--cgroup", net.Cgroup())
					rest := a.cost(b)
					sleep(b.Context(), still)
					idle = a.cost(b).since(rest)
					profiled := a.profile(b, name)
					before, began := a.cost(b), time.Now()
					runCount(b, net, psjob, size.batch, size.steps)
					took := time.Since(began).Seconds()
					spent := a.cost(b).since(before)
					profiled()
					messages += a.messages(b)
					wall += took
					sum.agent, sum.kernel, sum.lost = sum.agent+spent.agent, sum.kernel+spent.kernel, sum.lost+spent.lost
					a.stop(b)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(1e6*sum.agent/messages, "agent-us/msg")
				b.ReportMetric(1e6*sum.kernel/messages, "kernel-us/msg")
				b.ReportMetric(messages/wall, "msg/s")
				b.ReportMetric(100*idle.agent/still.Seconds(), "idle-%core")
				b.ReportMetric(sum.lost, "batches-lost")
			})
		}
	}
}

// runCount runs a job of two workers and two servers that use ids by chance.
func runCount(b testing.TB, net *hosts.Net, psjob string, batch, steps int) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	program := hosts.Program{psjob, "--json"}
	worker := append(program, "--model", "count", "--async", "--count-keys", "100000",
		"--count-batch", strconv.Itoa(batch), "--steps", strconv.Itoa(steps))
	j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Workers: hosts.Repeat(2, worker), Hosts: net.Hosts()}
	if running, err := j.Run(ctx); err != nil {
		b.Fatalf("%v\n%s", err, running.Workers[0].Stderr.String())
	}
}

// messages returns how many messages the agent has seen, of all jobs.
func (a *process) messages(b testing.TB) (n float64) {
	b.Helper()
	var jobs page.Jobs
	require.NoError(b, a.get(b.Context(), "/api/v1/jobs", nil, &jobs))
	for _, j := range jobs.Jobs {
		if j.Sampling != nil {
			n += 2 * float64(j.Sampling.Requests) // and an answer to each
		}
	}
	if n == 0 {
		b.Fatalf("the agent has seen no message: %s", &a.log)
	}
	return n
}

// profile begins a profile of the agent's processor time, where one is wanted. Call what
// it returns to have it kept.
func (a *process) profile(b testing.TB, name string) (keep func()) {
	dir := os.Getenv("PSIDECAR_PROFILE")
	if dir == "" {
		return func() {}
	}
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			r, err := http.Get(a.url + "/debug/pprof/profile?seconds=10")
			if err != nil {
				return err
			}
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%x.pprof", name)), text, 0o644)
		}()
	}()
	return func() {
		require.NoError(b, <-done)
	}
}

// BenchmarkStart measures how long it takes from the start of psidecar agent until it
// is ready, and how much processor time it has used by then.
func BenchmarkStart(b *testing.B) {
	require.BPF(b)
	psidecar := hoststest.BuildJob(b, "cmd/psidecar")
	net := hoststest.New(b, hosts.Config{Hosts: 1})
	var ready, cpu float64
	for b.Loop() {
		began := time.Now()
		a := startAgent(b, psidecar, "--cgroup", net.Cgroup())
		ready += time.Since(began).Seconds()
		cpu += a.cost(b).agent
		a.stop(b)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1e3*ready/float64(b.N), "ready-ms")
	b.ReportMetric(1e3*cpu/float64(b.N), "cpu-ms")
}

package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkOverhead runs a job beside psidecar agent and without it, in pairs
// whose order alternates, and reports medians over the pairs:
//
//   - ratio: of the times that the job's worker measured for a round (a push
//     and a pull of everything; the median round but the first one), with the
//     agent over without.
//   - cpu-ratio: of the CPU time of the job's cgroup; what the programs take in
//     the kernel is in it, the agent's is not.
//   - agent-ms/GB and kernel-ms/GB: CPU time of the agent's process and of its
//     programs while the job ran, per 10^9 bytes that the job sent. 10 ms/GB
//     are 1% of a core at 1 GB/s.
//
// Ten million keys at a time with everything looked at, and a million at a time
// with what psidecar agent does by default.
func BenchmarkOverhead(b *testing.B) {
	require.BPF(b)
	psidecar := hoststest.BuildJob(b, "cmd/psidecar")
	net := hoststest.New(b, hosts.Config{Hosts: 1})
	for _, bc := range []struct {
		name         string
		keys, rounds int
		flags        []string
	}{
		{"everything", 10_000_000, 16, []string{"--sample", "1"}},
		{"default", 1_000_000, 300, nil},
	} {
		b.Run(bc.name, func(b *testing.B) {
			var pairs []pair
			for i := 0; b.Loop(); i++ {
				var p pair
				if i%2 == 0 {
					p.without = measure(b, net, bc.keys, bc.rounds)
				}
				a := startAgent(b, psidecar, append(bc.flags, "--cgroup", net.Cgroup())...)
				before := a.cost(b)
				p.with = measure(b, net, bc.keys, bc.rounds)
				p.cost = a.cost(b).since(before)
				a.stop(b)
				if i%2 == 1 {
					p.without = measure(b, net, bc.keys, bc.rounds)
				}
				pairs = append(pairs, p)
			}
			gb := 1e-9 * bytesAKey * float64(bc.keys*bc.rounds)
			b.ReportMetric(median(pairs, func(p pair) float64 { return p.with.round / p.without.round }), "ratio")
			b.ReportMetric(median(pairs, func(p pair) float64 { return p.with.cpu / p.without.cpu }), "cpu-ratio")
			b.ReportMetric(median(pairs, func(p pair) float64 { return 1e3 * p.cost.agent / gb }), "agent-ms/GB")
			b.ReportMetric(median(pairs, func(p pair) float64 { return 1e3 * p.cost.kernel / gb }), "kernel-ms/GB")
			b.ReportMetric(median(pairs, func(p pair) float64 { return gb / p.with.wall }), "GB/s")
			b.ReportMetric(median(pairs, func(p pair) float64 { return p.cost.lost }), "batches-lost")
		})
	}
}

// bytesAKey is what a round sends for a key: key and value of the push, the
// pull's key, key and value of its answer.
const bytesAKey = 8 + 4 + 8 + 8 + 4

// A pair is the same job without and with an agent.
type pair struct {
	without, with measured
	cost          cost
}

// median of what f says of the pairs.
func median(pairs []pair, f func(pair) float64) float64 {
	var all []float64
	for _, p := range pairs {
		all = append(all, f(p))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// measured is what a job took, in seconds.
type measured struct {
	round float64 // the median one but for the first
	wall  float64 // all rounds
	cpu   float64 // of its processes, from start to end
}

func measure(b *testing.B, net *hosts.Net, keys, rounds int) measured {
	b.Helper()
	before := cgroupSeconds(b, net.Cgroup())
	printed := bench(b, net, strconv.Itoa(keys), strconv.Itoa(rounds))
	m := measured{cpu: cgroupSeconds(b, net.Cgroup()) - before}
	var took []float64
	for i, push := range printed.PushSeconds {
		round := push + printed.PullSeconds[i]
		m.wall += round
		if i > 0 {
			took = append(took, round)
		}
	}
	slices.Sort(took)
	m.round = took[len(took)/2]
	return m
}

// cgroupSeconds returns the CPU time of the cgroup's processes.
func cgroupSeconds(b *testing.B, cgroup string) float64 {
	b.Helper()
	took := require.Value(hosts.CgroupCPU(cgroup))(b)
	return took.Seconds()
}

// process is psidecar agent, running.
type process struct {
	cmd *exec.Cmd
	url string
	log bytes.Buffer
}

func startAgent(b testing.TB, psidecar string, flags ...string) *process {
	b.Helper()
	l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	address := l.Addr().String()
	l.Close() // for the agent to listen on
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	a := &process{url: "http://" + address, cmd: exec.Command(psidecar, append([]string{"agent", "--http", address}, flags...)...)}
	a.cmd.Stderr = &a.log
	require.NoError(b, a.cmd.Start())
	for {
		if r, err := http.Get(a.url + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return a
			}
		}
		if ctx.Err() != nil {
			a.stop(b)
			b.Fatalf("the agent is not ready: %s", &a.log)
		}
		sleep(ctx, 10*time.Millisecond)
	}
}

func (a *process) stop(b testing.TB) {
	b.Helper()
	if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
		b.Error(err)
	}
	if err := a.cmd.Wait(); err != nil {
		b.Errorf("%v: %s", err, &a.log)
	}
}

// cost is what an agent took so far, in seconds of CPU time, and lost.
type cost struct{ agent, kernel, lost float64 }

func (c cost) since(before cost) cost {
	return cost{c.agent - before.agent, c.kernel - before.kernel, c.lost - before.lost}
}

func (a *process) cost(b testing.TB) (c cost) {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(cpuClock(a.cmd.Process.Pid), &ts); err != nil {
		b.Fatalf("reading the agent's CPU time: %v", err)
	}
	c.agent = float64(ts.Nano()) / 1e9
	r := require.Value(http.Get(a.url + "/api/v1/agent"))(b)
	defer r.Body.Close()
	var said page.Agent
	if err := json.NewDecoder(r.Body).Decode(&said); err != nil {
		b.Fatal(fmt.Errorf("reading what the agent says of itself: %w", err))
	}
	for _, p := range said.Programs {
		c.kernel += p.Seconds
	}
	for _, counter := range said.Counters {
		if counter.Reason == bpf.ReasonRingFull.String() {
			c.lost += float64(counter.Events)
		}
	}
	return c
}

// cpuClock names the clock of a process's CPU time, that of threads which have
// ended included, as clock_getcpuclockid(3) does.
func cpuClock(pid int) int32 {
	const schedulers = 2
	return int32(^pid<<3 | schedulers)
}

package watch

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// interval is how finely the agents of these tests keep time.
const interval = 100 * time.Millisecond

// An agent that comes to a job in full flow: it finds every connection's
// message boundaries, everybody's role and the servers' ranks, and what it
// counts from then on is right; what passed before is reported as missed.
func TestLateStart(t *testing.T) {
	program := hoststest.BuildPeer(t)
	for _, on := range []network{{name: "one-host", hosts: 1}, {name: "hosts", hosts: 3}, {name: "hosts-IPv6", hosts: 3, ipv6: true}} {
		t.Run(on.name, func(t *testing.T) {
			for attempt := 1; !lateStart(t, program, on, attempt == attempts); attempt++ {
				t.Logf("the buffer was full in attempt %d: this machine is too busy", attempt)
			}
		})
	}
}

// lateStart watches a job that is in full flow. Where the buffer was too small
// for what the machine left the agent of its cores, it returns false, unless
// this is the last attempt.
func lateStart(t *testing.T, program string, on network, isLast bool) bool {
	net := on.make(t)
	args := []string{"--keys", "20000", "--space", "20000", "--rounds", "1000000"}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running := require.Value(hosts.Job{
		Scheduler: hosts.Program{program}, Servers: hosts.Repeat(2, hosts.Program{program}),
		Workers: hosts.Repeat(3, append(hosts.Program{program}, args...)), Hosts: net.Hosts(), IPv6: on.ipv6,
	}.Start(ctx))(t)
	defer func() {
		cancel()
		running.Wait() // they were killed
	}()
	sleep(ctx, 2*time.Second) // let it get going
	w := watch(t, net.Cgroup(), func(o *agent.Options) { o.Locality.Interval = interval })
	began := time.Now()
	var seen page.Job
	for problem := "not looked yet"; problem != ""; sleep(ctx, 50*time.Millisecond) {
		seen, problem = settled(w)
		if ctx.Err() != nil {
			t.Fatalf("after %v: %s", time.Since(began).Round(time.Millisecond), problem)
		}
	}
	t.Logf("roles, ranks and all connections after %v", time.Since(began).Round(time.Millisecond))
	return checkRates(t, ctx, w, seen.Name, isLast)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// settled returns the only job, and its faults so far.
func settled(w *watcher) (page.Job, string) {
	jobs := w.Jobs()
	if len(jobs) != 1 {
		return page.Job{}, fmt.Sprintf("%d jobs", len(jobs))
	}
	roles := map[string]int{}
	for _, n := range jobs[0].Nodes {
		if n.Role == "server" && n.Rank < 0 || !n.Local {
			return jobs[0], fmt.Sprintf("node %+v", n)
		}
		roles[n.Role]++
	}
	c := jobs[0].Connections
	if roles["scheduler"] != 1 || roles["server"] != 2 || roles["worker"] != 3 {
		return jobs[0], fmt.Sprintf("roles %v", roles)
	}
	if c.Unsynced > 0 || c.Unplaced > 0 || c.Missed == 0 || jobs[0].Accesses == 0 {
		return jobs[0], fmt.Sprintf("connections %+v, %d accesses", c, jobs[0].Accesses)
	}
	return jobs[0], ""
}

// checkRates looks at a stretch of time after everything was found: every
// worker uses every key equally often, pushing and pulling in turn, four bytes
// each. At its ends, requests and answers under way make for a difference. It
// ends the agent, so that all is asked of the same time. It returns false where
// the buffer was full, unless this is the last attempt.
func checkRates(t *testing.T, ctx context.Context, w *watcher, name string, isLast bool) bool {
	t.Helper()
	from := time.Now().Add(-interval)
	sleep(ctx, 2*time.Second)
	const slack = 6
	counters := w.Agent.Agent().Counters
	if !isLast && ringWasFull(counters) {
		return false
	}
	w.nothingLost(t, counters, bpf.ReasonUnsynced)
	require.NoError(t, w.stop())
	sums := map[string]map[page.Measure]float64{}
	for _, m := range []page.Measure{page.Pushes, page.Pulls, page.PushedBytes, page.PulledBytes} {
		h, err := w.Heatmap(name, page.HeatmapQuery{Blocks: 4096, Last: math.MaxUint64, Measure: m, Range: page.Range{From: from}})
		require.NoError(t, err)
		if len(h.Workers) != 3 || len(h.Blocks) < 64 {
			t.Fatalf("%d workers, %d blocks", len(h.Workers), len(h.Blocks))
		}
		for i, worker := range h.Workers {
			low, high := math.Inf(1), 0.0
			for b, n := range h.Counts[i] {
				perKey := float64(n) / float64(h.Blocks[b].Keys)
				low, high = min(low, perKey), max(high, perKey)
			}
			unit := 1.0
			if m == page.PushedBytes || m == page.PulledBytes {
				unit = 4
			}
			if low < 10*unit || high-low > slack*unit {
				t.Errorf("%s: %s of a key are between %.1f and %.1f", worker, m, low, high)
			}
			if sums[worker] == nil {
				sums[worker] = map[page.Measure]float64{}
			}
			sums[worker][m] = low / unit
		}
	}
	for worker, s := range sums {
		for m, n := range s {
			if math.Abs(n-s[page.Pushes]) > slack {
				t.Errorf("%s: %.1f %s of a key, but %.1f pushes", worker, n, m, s[page.Pushes])
			}
		}
	}
	return true
}

package watch

import (
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// tenMillion is a job that pushes and pulls ten million keys at a time, one
// worker and one server over loopback, as fast as they can.
func tenMillion(t testing.TB, net *hosts.Net, rounds string) hoststest.PeerWorker {
	t.Helper()
	return bench(t, net, "10000000", rounds)
}

// bench is a job that pushes and pulls a number of keys in a number of rounds.
func bench(t testing.TB, net *hosts.Net, keys, rounds string) hoststest.PeerWorker {
	t.Helper()
	program := hoststest.BuildPeer(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running := require.Value(hosts.Job{
		Scheduler: hosts.Program{program}, Servers: []hosts.Program{{program, "--discard"}},
		Workers: []hosts.Program{{program, "--mode", "bench", "--keys", keys, "--rounds", rounds}},
		Hosts:   net.Hosts(),
	}.Run(ctx))(t)
	var printed hoststest.PeerWorker
	if err := json.Unmarshal(running.Workers[0].Stdout.Bytes(), &printed); err != nil {
		t.Fatalf("the worker printed %q: %v", running.Workers[0].Stdout.String(), err)
	}
	return printed
}

// Every one of ten million keys is captured at full speed, in pushes, pulls and
// answers. BenchmarkOverhead does it with a buffer of the default size.
func TestTenMillionKeys(t *testing.T) {
	net := hoststest.New(t, hosts.Config{Hosts: 1})
	for attempt := 1; !tenMillionKeys(t, net, attempt == attempts); attempt++ {
		t.Logf("the buffer was full in attempt %d: this machine is too busy", attempt)
	}
}

// tenMillionKeys returns false where the buffer was full, unless this is the
// last attempt.
func tenMillionKeys(t *testing.T, net *hosts.Net, isLast bool) bool {
	t.Helper()
	w := watch(t, net.Cgroup())
	printed := tenMillion(t, net, "3")
	me := w.Agent.Agent()
	counters, programs, cpu := me.Counters, me.Programs, me.CPUSeconds
	require.NoError(t, w.stop())
	if !isLast && ringWasFull(counters) {
		return false
	}
	w.nothingLost(t, counters)
	t.Logf("pushes took %.3v s, pulls %.3v s; %+v; the process took %.2f s", printed.PushSeconds, printed.PullSeconds, programs, cpu)
	jobs := w.Jobs()
	if len(jobs) != 1 || jobs[0].DistinctKeys != 10_000_000 || !jobs[0].Exact {
		t.Fatalf("jobs %+v, want one of 10 million keys, exact", jobs)
	}
	want := map[page.Measure]uint64{
		page.Pushes: uint64(printed.Pushes), page.Pulls: uint64(printed.Pulls),
		page.PushedBytes: 4 * uint64(printed.Pushes), page.PulledBytes: 4 * uint64(printed.Pulls),
	}
	for m, n := range want {
		h := require.Value(w.Heatmap(jobs[0].Name, page.HeatmapQuery{Blocks: 1000, Last: math.MaxUint64, Measure: m}))(t)
		for i, b := range h.Blocks {
			if h.Counts[0][i] != n*b.Keys {
				t.Fatalf("%s of block %d: %d, want %d for each of %d keys", m, i, h.Counts[0][i], n, b.Keys)
			}
		}
	}
	return true
}

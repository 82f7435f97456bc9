// Package watch has the end-to-end tests of watching: an agent beside jobs of
// real programs, and what it counted against what the programs say they did.
package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a job may take on a busy machine.
const patience = 10 * time.Minute

// watcher is an agent that runs.
type watcher struct {
	*agent.Agent
	stop func() error // lets it read what the kernel has copied, then ends it
}

// watch starts an agent on a cgroup, everything counted.
func watch(t testing.TB, cgroup string, change ...func(*agent.Options)) *watcher {
	t.Helper()
	require.BPF(t)
	opts := agent.Options{
		Host: "test", Cgroups: []string{cgroup}, Proc: "/proc", CgroupRoot: require.CgroupV2(t),
		Capture: bpf.Options{Ingress: bpf.IngressMetas, MeasureCost: true, RingBytes: 128 << 20}, Locality: counts.DefaultLocalityOptions, Sampling: agent.Sampling{OneIn: 1},
	}
	for _, f := range change {
		f(&opts)
	}
	a := require.Value(agent.New(opts))(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	w := &watcher{Agent: a}
	done, result := false, error(nil)
	w.stop = func() error {
		if !done {
			cancel()
			done, result = true, <-ended
		}
		return result
	}
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Errorf("ending the agent: %v", err)
		}
	})
	return w
}

// keysOf returns what each worker did with each key, by the agent's account.
func (w *watcher) keysOf(t testing.TB, job string) map[string]map[uint64]hoststest.PeerAccess {
	t.Helper()
	all := map[string]map[uint64]hoststest.PeerAccess{}
	fields := map[page.Measure]func(*hoststest.PeerAccess) *uint64{
		page.Pushes:      func(a *hoststest.PeerAccess) *uint64 { return &a.Pushes },
		page.Pulls:       func(a *hoststest.PeerAccess) *uint64 { return &a.Pulls },
		page.PushedBytes: func(a *hoststest.PeerAccess) *uint64 { return &a.PushBytes },
		page.PulledBytes: func(a *hoststest.PeerAccess) *uint64 { return &a.PullBytes },
	}
	for measure, field := range fields {
		h := require.Value(w.Heatmap(job, page.HeatmapQuery{Blocks: math.MaxInt32, Last: math.MaxUint64, Measure: measure}))(t)
		if !h.Exact || !h.Finest {
			t.Errorf("the heatmap is not exact to the key: exact %v, finest %v", h.Exact, h.Finest)
		}
		for i, name := range h.Workers {
			if all[name] == nil {
				all[name] = map[uint64]hoststest.PeerAccess{}
			}
			for k, n := range h.Counts[i] {
				if h.Blocks[k].First != h.Blocks[k].Last {
					t.Fatalf("block %d holds several keys: %+v", k, h.Blocks[k])
				}
				if n > 0 {
					a := all[name][uint64(h.Blocks[k].First)]
					*field(&a) = n
					all[name][uint64(h.Blocks[k].First)] = a
				}
			}
		}
	}
	return all
}

// nothingLost fails the test if the agent missed anything, but for reasons
// that are to be expected.
func (w *watcher) nothingLost(t testing.TB, counters []page.Counter, expected ...bpf.Reason) {
	t.Helper()
	expected = append(expected, bpf.ReasonUntimed) // those tests that look at times tell whether any is missing
	for _, c := range counters {
		if slices.ContainsFunc(expected, func(r bpf.Reason) bool { return r.String() == c.Reason }) {
			continue
		}
		if c.Class == bpf.ClassLost.String() && (c.Events > 0 || c.Bytes > 0) {
			t.Errorf("lost: %s, %d times, %d bytes (%s)", c.Reason, c.Events, c.Bytes, c.Help)
		}
	}
}

// attempts is how often a test at full speed is tried where the buffer was full:
// on two cores that a job takes whole, another process can starve the agent.
const attempts = 3

func ringWasFull(counters []page.Counter) bool {
	return slices.ContainsFunc(counters, func(c page.Counter) bool {
		return c.Reason == bpf.ReasonRingFull.String() && c.Events > 0
	})
}

// compare compares the agent's account of a worker with the worker's own.
func compare(t testing.TB, worker string, got, want map[uint64]hoststest.PeerAccess) {
	t.Helper()
	wrong := 0
	for k, a := range want {
		if got[k] != a {
			if wrong++; wrong <= 5 {
				t.Errorf("%s, key %d: agent %+v, worker %+v", worker, k, got[k], a)
			}
		}
	}
	for k, a := range got {
		if _, ok := want[k]; !ok {
			if wrong++; wrong <= 5 {
				t.Errorf("%s, key %d: agent %+v, the worker never used it", worker, k, a)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%s: %d of %d keys wrong", worker, wrong, len(want))
	}
}

// network is what a job runs on.
type network struct {
	name     string
	hosts    int // 1: all on one, over its loopback interface
	ipv6     bool
	segments int
	faults   hoststest.Faults
}

var networks = []network{
	{name: "one-host", hosts: 1},
	{name: "hosts", hosts: 3},
	{name: "hosts-IPv6", hosts: 3, ipv6: true},
	{name: "small-segments", hosts: 3, segments: 64},
	{name: "lossy", hosts: 3, segments: 1000, faults: hoststest.Faults{Drop: 0.02, Duplicate: 0.02}},
}

// make returns the network's hosts.
func (n network) make(t testing.TB) *hosts.Net {
	t.Helper()
	net := hoststest.New(t, hosts.Config{Hosts: n.hosts})
	require.NoError(t, hoststest.SetSegments(net, n.segments))
	for _, h := range net.Hosts() {
		hoststest.Inject(t, h, n.faults)
	}
	return net
}

// The C++ peer's accounts equal the agent's, to the byte.
func TestTruthOfPeer(t *testing.T) {
	program := hoststest.BuildPeer(t)
	for _, on := range networks {
		for name, args := range map[string][]string{
			"scalar":   {"--keys", "1000", "--shift", "300", "--space", "3000"},
			"long":     {"--keys", "200", "--space", "200", "--width", "40"},
			"lens":     {"--keys", "3000", "--shift", "1000", "--space", "8000", "--lens"},
			"pushpull": {"--keys", "1000", "--space", "1000", "--pushpull"},
		} {
			t.Run(on.name+"/"+name, func(t *testing.T) {
				net := on.make(t)
				w := watch(t, net.Cgroup())
				watchPeers(t, w, net.Hosts(), on.ipv6, program, 3, args...)
			})
		}
	}
}

// watchPeers runs a job of the C++ peer to its end, two servers and a number of
// workers, on hosts that w watches: the agent's account must equal the workers'.
func watchPeers(t *testing.T, w *watcher, on []*hosts.Host, ipv6 bool, program string, workers int, args ...string) {
	t.Helper()
	dir := t.TempDir()
	j := hosts.Job{Scheduler: hosts.Program{program}, Servers: hosts.Repeat(2, hosts.Program{program}), Hosts: on, IPv6: ipv6}
	for i := range workers {
		p := append(hosts.Program{program, "--access", filepath.Join(dir, strconv.Itoa(i))}, args...)
		j.Workers = append(j.Workers, p)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running := require.Value(j.Run(ctx))(t)
	counters := w.Agent.Agent().Counters
	require.NoError(t, w.stop())
	w.nothingLost(t, counters)
	checkPeerTruth(t, w, running, dir)
}

func checkPeerTruth(t *testing.T, w *watcher, running *hosts.Running, dir string) {
	t.Helper()
	jobs := w.Jobs()
	if len(jobs) != 1 {
		t.Fatalf("%d jobs, want 1", len(jobs))
	}
	got := w.keysOf(t, jobs[0].Name)
	if len(got) != len(running.Workers) {
		t.Errorf("workers %v, want %d; nodes %+v", keysOfMap(got), len(running.Workers), jobs[0].Nodes)
	}
	requests := map[string]uint64{}
	for i, n := range running.Workers {
		var printed hoststest.PeerWorker
		if err := json.Unmarshal(n.Stdout.Bytes(), &printed); err != nil {
			t.Fatalf("worker %d printed %q: %v", i, n.Stdout.String(), err)
		}
		want := require.Value(hoststest.ReadAccess(filepath.Join(dir, strconv.Itoa(i))))(t)
		name := fmt.Sprintf("worker%d", printed.Rank)
		compare(t, name, got[name], want)
		requests[name] = uint64(printed.Pushes + printed.Pulls)
	}
	loads := require.Value(w.Servers(jobs[0].Name, page.Range{}))(t)
	for _, s := range loads.Servers {
		if s.Latency.Count != s.Requests || s.Requests == 0 {
			t.Errorf("%s: %d requests, %d of them with their answers", s.Name, s.Requests, s.Latency.Count)
		}
	}
}

func keysOfMap[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

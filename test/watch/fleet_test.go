package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/report"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/fleet"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// An agent on each host sees what its host sends; together they have counted every
// message once, and timed every request, though answers come from other hosts. The
// node table that arrives identifies all nodes to every agent.
func TestAgentsTogether(t *testing.T) {
	program := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	net := hoststest.New(t, hosts.Config{Hosts: 3})
	var agents []*watcher
	for _, h := range net.Hosts() {
		agents = append(agents, watch(t, h.Cgroup(), func(o *agent.Options) { o.Host = h.Name }))
	}
	dir := t.TempDir()
	j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Hosts: net.Hosts()}
	for i := range 3 {
		j.Workers = append(j.Workers, append(hosts.Program{}, program[0], "--json", "--model", "count", "--count-lens",
			"--steps", "300", "--access-log", filepath.Join(dir, strconv.Itoa(i))))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.Value(j.Run(ctx))(t)
	var all []*api.HostReport
	for i, w := range agents {
		require.NoError(t, w.stop())
		checkTimed(t, w)
		r := w.HostReport(report.Wanted{})
		r.Host = fmt.Sprint(i)
		all = append(all, r)
	}
	s := &fleet.State{Reports: func() []*api.HostReport { return all }}
	jobs := s.Jobs()
	if len(jobs) != 1 || jobs[0].Workers != 3 || jobs[0].Servers != 2 {
		t.Fatalf("jobs %+v, want one of 3 workers and 2 servers", jobs)
	}
	truth := map[uint64]uint64{} // accesses of each key
	for i := range 3 {
		rank, access := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
		for k, n := range access {
			truth[k] += n.Pulls + n.Pushes
		}
		for _, m := range page.Measures {
			checkFleet(t, s, jobs[0].Name, fmt.Sprintf("worker%d", rank), m, access)
		}
	}
	// Rates are those of whole seconds, and 0 once a host has seen the processes end.
	rates := true
	for _, r := range all {
		for _, j := range r.Jobs {
			if j.State == page.Over || j.Recent.LastUnixNanos < jobs[0].LastSeen.UnixNano() {
				rates = false
			}
		}
	}
	checkFleetTimes(t, s, jobs[0], rates)
	checkFleetKeys(t, s, jobs[0], truth)
	if hosts := s.Agent().Hosts; len(hosts) != 3 || hosts[0].MemoryBytes == 0 || hosts[2].SampledOneIn != 1 {
		t.Errorf("hosts %+v", hosts)
	}
}

// checkFleetTimes checks that the hosts together timed every request, and that
// nobody is without steps where there are rates by now.
func checkFleetTimes(t *testing.T, s *fleet.State, j page.Job, rates bool) {
	t.Helper()
	loads := require.Value(s.Servers(j.Name, page.Range{}))(t)
	requests := uint64(0)
	for _, server := range loads.Servers {
		if requests += server.Requests; server.Latency.Count != server.Requests || server.Requests == 0 {
			t.Errorf("%s: %d requests, %d of them with their answers", server.Name, server.Requests, server.Latency.Count)
		}
	}
	for _, w := range loads.Workers {
		if w.Latency.Count != w.Requests || rates && w.StepsPerSecond <= 0 || w.Latency.P50 <= 0 {
			t.Errorf("%+v", w)
		}
	}
	if j.Latency.Count != requests || rates && (j.StepsPerSecond <= 0 || j.BytesPerSecond <= 0) {
		t.Errorf("%d requests; the job: %+v", requests, j)
	}
	if _, err := s.Traffic(j.Name, page.Range{From: time.Unix(1, 0)}); !errors.Is(err, page.ErrNoRange) {
		t.Errorf("for a stretch of time: %v", err)
	}
}

// checkFleetKeys compares the hottest keys and the skew with every key's
// accesses: bounds must hold.
func checkFleetKeys(t *testing.T, s *fleet.State, j page.Job, truth map[uint64]uint64) {
	t.Helper()
	k := require.Value(s.Keys(j.Name, 100))(t)
	for _, h := range k.Hottest { // all keys are about as hot: some hosts have a key among their hottest, some have not
		rank, ok := pslite.Owner(uint64(h.Key), 2)
		if h.Accesses == 0 || h.Accesses > truth[uint64(h.Key)] || h.Pulls+h.Pushes != h.Accesses || !ok || h.Server != fmt.Sprintf("server%d", rank) {
			t.Errorf("%+v, but it was used %d times", h, truth[uint64(h.Key)])
			break
		}
	}
	var falling []uint64
	sum := uint64(0)
	for _, n := range truth {
		falling = append(falling, n)
		sum += n
	}
	slices.Sort(falling)
	slices.Reverse(falling)
	below := make([]uint64, len(falling)+1)
	for i, n := range falling {
		below[i+1] = below[i] + n
	}
	if len(k.Skew) == 0 || k.Skew[len(k.Skew)-1].Accesses != sum || j.Accesses != sum {
		t.Errorf("the skew ends with %v, %d accesses in all, want %d", k.Skew, j.Accesses, sum)
	}
	for _, p := range k.Skew {
		if p.Accesses > below[min(p.Keys, uint64(len(falling)))] {
			t.Errorf("%d accesses to the %d hottest keys, but there were %d", p.Accesses, p.Keys, below[min(p.Keys, uint64(len(falling)))])
		}
	}
	if n := uint64(len(truth)); j.DistinctKeys > n || j.DistinctKeys < n*9/10 || !j.KeysAtLeast || !k.Sketch.Exact || k.Sketch.MemoryBytes == 0 {
		t.Errorf("at least %d distinct keys (%v), want %d or a bit less; %+v", j.DistinctKeys, j.KeysAtLeast, n, k.Sketch)
	}
}

// checkTimed checks that every request that left the host was matched with its
// answer, which came from another host as often as not, and that no process of
// another host, whose /proc is the same here, was taken for one of this host's.
func checkTimed(t *testing.T, w *watcher) {
	t.Helper()
	jobs := w.Jobs()
	if len(jobs) != 1 {
		t.Fatalf("%d jobs, want 1", len(jobs))
	}
	traffic := require.Value(w.Traffic(jobs[0].Name, page.Range{}))(t)
	requests := uint64(0)
	for _, row := range traffic.Requests {
		for _, n := range row {
			requests += n
		}
	}
	if timed := jobs[0].Latency.Count; timed != requests || requests == 0 {
		t.Errorf("%d requests, %d of them with their answers: %+v", requests, timed, jobs[0].Connections)
	}
	local := 0
	for _, n := range jobs[0].Nodes {
		if n.Local {
			local++
		}
	}
	if local == 0 || local > 3 {
		t.Errorf("%d of the nodes %+v run on this host, want a worker, a server and a scheduler at most", local, jobs[0].Nodes)
	}
}

// checkFleet compares each block of a worker with its own account.
func checkFleet(t *testing.T, s *fleet.State, job, worker string, m page.Measure, access map[uint64]hoststest.PeerAccess) {
	t.Helper()
	h := require.Value(s.Heatmap(job, page.HeatmapQuery{Blocks: 1000, Last: math.MaxUint64, Measure: m}))(t)
	if len(h.Workers) != 3 || len(h.Blocks) < 32 {
		t.Fatalf("workers %v, %d blocks", h.Workers, len(h.Blocks))
	}
	for i, name := range h.Workers {
		if name != worker {
			continue
		}
		for b, block := range h.Blocks {
			want := uint64(0)
			for k, a := range access {
				if k < uint64(block.First) || k > uint64(block.Last) {
					continue
				}
				want += m.Of([4]uint64{a.Pulls, a.Pushes, a.PullBytes, a.PushBytes})
			}
			if h.Counts[i][b] != want {
				t.Errorf("%s, %s of block %d: %d, want %d", worker, m, b, h.Counts[i][b], want)
				return
			}
		}
		return
	}
	t.Errorf("%s is not among %v", worker, h.Workers)
}

package watch

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/fleet"
	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/hosts"
	"github.com/psidecar/psidecar/test/hosts/hoststest"
	"github.com/psidecar/psidecar/test/job"
	"github.com/psidecar/psidecar/test/peer"
)

// An agent on each host sees what its host sends; together they have counted
// every message once. Only the scheduler's host sees the node table, so the
// others need a moment to find out who is who before the job sets off.
func TestAgentsTogether(t *testing.T) {
	program := job.Program{job.Build(t, "cmd/psjob"), "--json"}
	net := hoststest.New(t, hosts.Config{Hosts: 3})
	var agents []*watcher
	for _, h := range net.Hosts() {
		agents = append(agents, watch(t, h.Cgroup(), func(o *agent.Options) { o.Host = h.Name }))
	}
	dir := t.TempDir()
	j := job.Job{Scheduler: program, Servers: job.Repeat(2, program), Hosts: net.Hosts()}
	for i := range 3 {
		j.Workers = append(j.Workers, append(job.Program{}, program[0], "--json", "--model", "count", "--count-lens",
			"--steps", "300", "--start-after", "3s", "--access-log", filepath.Join(dir, strconv.Itoa(i))))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := j.Run(ctx); err != nil {
		t.Fatal(err)
	}
	var all []*api.HostReport
	for i, w := range agents {
		if err := w.stop(); err != nil {
			t.Fatal(err)
		}
		checkTimed(t, w)
		all = append(all, &api.HostReport{Host: fmt.Sprint(i), Jobs: w.Reports()})
	}
	s := &fleet.State{Reports: func() []*api.HostReport { return all }}
	jobs := s.Jobs()
	if len(jobs) != 1 || jobs[0].Workers != 3 || jobs[0].Servers != 2 {
		t.Fatalf("jobs %+v, want one of 3 workers and 2 servers", jobs)
	}
	for i := range 3 {
		header, access := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
		for _, m := range web.Measures {
			checkFleet(t, s, jobs[0].Name, fmt.Sprintf("worker%d", header.Rank), m, access)
		}
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
	traffic, err := w.Traffic(jobs[0].Name, web.Range{})
	if err != nil {
		t.Fatal(err)
	}
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
func checkFleet(t *testing.T, s *fleet.State, job, worker string, m web.Measure, access map[uint64]peer.Access) {
	t.Helper()
	h, err := s.Heatmap(job, web.HeatmapQuery{Blocks: 1000, Last: math.MaxUint64, Measure: m})
	if err != nil {
		t.Fatal(err)
	}
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

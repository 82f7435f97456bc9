package watch

import (
	"context"
	"fmt"
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

// readAccessLog returns the rank of a psjob worker, and what it says it did.
func readAccessLog(t testing.TB, path string) (rank int, keys map[uint64]hoststest.PeerAccess) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(text), "# worker %d", &rank)
	require.NoError(t, err)
	keys, err = hoststest.ReadAccess(path)
	require.NoError(t, err)
	return rank, keys
}

// psjob's accounts equal the agent's, also where the nodes throw messages away
// and PS_RESEND sends them again: a repeat is no access.
func TestTruthOfPsjob(t *testing.T) {
	program := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	resend := []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=5"}
	for _, tc := range []struct {
		name string
		args []string
		env  []string
		on   network
	}{
		{"scalar", nil, nil, network{hosts: 3}},
		{"long", []string{"--value-length", "24"}, nil, network{hosts: 3, ipv6: true}},
		{"lens", []string{"--count-lens"}, nil, network{hosts: 3, segments: 64}},
		{"resend", nil, resend, network{hosts: 3}},
		{"resend-lossy-lens", []string{"--count-lens"}, resend, network{hosts: 3, segments: 1000, faults: hoststest.Faults{Drop: 0.01, Duplicate: 0.01}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			net := tc.on.make(t)
			w := watch(t, net.Cgroup())
			dir := t.TempDir()
			j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Hosts: net.Hosts(), IPv6: tc.on.ipv6, Env: tc.env}
			for i := range 3 {
				p := append(hosts.Program{}, program...)
				p = append(p, "--model", "count", "--steps", "50", "--access-log", filepath.Join(dir, strconv.Itoa(i)))
				j.Workers = append(j.Workers, append(p, tc.args...))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if running, err := j.Run(ctx); err != nil {
				t.Fatalf("%v\n%s", err, running.Workers[0].Stderr.String())
			}
			counters := w.Agent.Agent().Counters
			require.NoError(t, w.stop())
			w.nothingLost(t, counters)
			jobs := w.Jobs()
			if len(jobs) != 1 {
				t.Fatalf("%d jobs, want 1", len(jobs))
			}
			got := w.keysOf(t, jobs[0].Name)
			for i := range 3 {
				rank, want := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
				name := fmt.Sprintf("worker%d", rank)
				compare(t, name, got[name], want)
			}
			traffic := require.Value(w.Traffic(jobs[0].Name, page.Range{}))(t)
			if (traffic.RepeatedBytes > 0) != (tc.env != nil) {
				t.Errorf("%d bytes were repeated; PS_RESEND: %v", traffic.RepeatedBytes, tc.env != nil)
			}
		})
	}
}

// An agent that comes late knows every node's rank: what PS-lite's scheduler
// dealt by address, it works out from the addresses.
func TestLateRanks(t *testing.T) {
	program := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}
	net := hoststest.New(t, hosts.Config{Hosts: 3})
	dir := t.TempDir()
	j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Hosts: net.Hosts()}
	for i := range 4 {
		p := append(hosts.Program{}, program...)
		j.Workers = append(j.Workers, append(p, "--model", "count", "--steps", "6000", "--access-log", filepath.Join(dir, strconv.Itoa(i))))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running := require.Value(j.Start(ctx))(t)
	sleep(ctx, time.Second)
	w := watch(t, net.Cgroup())
	require.NoError(t, running.Wait())
	jobs := w.Jobs()
	if len(jobs) != 1 {
		t.Fatalf("%d jobs, want 1 (did the job end before the agent came?)", len(jobs))
	}
	names := map[int]string{}
	for _, n := range jobs[0].Nodes {
		names[n.PID] = n.Name
	}
	for i, n := range running.Workers {
		rank, _ := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
		if want := fmt.Sprintf("worker%d", rank); names[n.Process.Pid()] != want {
			t.Errorf("process %d is %q to the agent, in truth %s", n.Process.Pid(), names[n.Process.Pid()], want)
		}
	}
}

package watch

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/test/hoststest"
)

// readAccessLog returns what a psjob worker says it did.
func readAccessLog(t testing.TB, path string) (kv.AccessHeader, map[uint64]hoststest.PeerAccess) {
	t.Helper()
	keys := map[uint64]hoststest.PeerAccess{}
	header, err := kv.ReadAccessFile(path, func(key uint64, c kv.AccessCounts) error {
		keys[key] = hoststest.PeerAccess{
			Pushes: uint64(c.Pushes), PushBytes: c.PushBytes, Pulls: uint64(c.Pulls), PullBytes: c.PullBytes,
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return header, keys
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
		{"resend-lossy-lens", []string{"--count-lens"}, resend, network{hosts: 3, segments: 1000, faults: hosts.Faults{Drop: 0.01, Duplicate: 0.01}}},
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
			if err := w.stop(); err != nil {
				t.Fatal(err)
			}
			w.nothingLost(t, counters)
			jobs := w.Jobs()
			if len(jobs) != 1 {
				t.Fatalf("%d jobs, want 1", len(jobs))
			}
			got := w.keysOf(t, jobs[0].Name)
			for i := range 3 {
				header, want := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
				name := fmt.Sprintf("worker%d", header.Rank)
				compare(t, name, got[name], want)
			}
			traffic, err := w.Traffic(jobs[0].Name, page.Range{})
			if err != nil {
				t.Fatal(err)
			}
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
	running, err := j.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sleep(ctx, time.Second)
	w := watch(t, net.Cgroup())
	if err := running.Wait(); err != nil {
		t.Fatal(err)
	}
	jobs := w.Jobs()
	if len(jobs) != 1 {
		t.Fatalf("%d jobs, want 1 (did the job end before the agent came?)", len(jobs))
	}
	names := map[int]string{}
	for _, n := range jobs[0].Nodes {
		names[n.PID] = n.Name
	}
	for i, n := range running.Workers {
		header, _ := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
		if want := fmt.Sprintf("worker%d", header.Rank); names[n.Process.Pid()] != want {
			t.Errorf("process %d is %q to the agent, in truth %s", n.Process.Pid(), names[n.Process.Pid()], want)
		}
	}
}

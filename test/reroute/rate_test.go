package reroute

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// TestRate measures how many keys a second move between two hosts at 1 Gbit/s
// while a job counts.
func TestRate(t *testing.T) {
	require.Measurement(t)
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const k, ids = 2, 200_000
	n := hoststest.New(t, hosts.Config{Hosts: k, Rate: 1e9})
	p := acting.NewPlanner(t, n.Host(0))
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--planner", p.Address, "--state-dir", t.TempDir()))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	mine := hosts.Program{psjob, "--json"}
	count := hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(ids), "--count-batch", "100", "--count-compute", "10ms", "--steps", "3000"}
	r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count)}.Start(ctx)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Wait() }()
	moved := func() (keys, bytes uint64, held []uint64) {
		for _, s := range all {
			for _, j := range states(t, s) {
				keys, bytes, held = keys+j.Moved, bytes+j.MovedBytes, append(held, j.HeldMicros...)
			}
		}
		return keys, bytes, held
	}
	rng, name := rand.New(rand.NewPCG(1, 1)), acting.JobName(n.Host(0).IPv4)
	require.Eventually(t, "keys move", func() bool {
		if plain(t, all) > 20 {
			p.Propose(rng, name, hoststest.JobKeys(t, ids), ids, k)
		}
		return p.Busy(name)
	})
	began := time.Now()
	for p.Busy(name) {
		select {
		case err := <-done:
			t.Fatalf("the job ended before all had moved: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	took := time.Since(began).Seconds()
	keys, bytes, held := moved()
	t.Logf("%d keys, %d bytes of values, in %.2f s: %.0f keys/s; %d batches, held for %d µs at the median", keys, bytes, took, float64(keys)/took, len(held), median(held))
	for _, s := range all {
		t.Logf("%s: %v", s.Host.Name, states(t, s)[0].PhaseMicros)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package reroute

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// TestHold measures for how long requests for keys that move are held, and what
// for: while a job counts at full speed, and while it computes between its steps.
func TestHold(t *testing.T) {
	require.Measurement(t)
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const k, ids = 2, 3000
	n := hoststest.New(t, hosts.Config{Hosts: k})
	for _, c := range []struct {
		name string
		args []string
	}{
		{"computing", []string{"--count-compute", "20ms", "--steps", "400"}},
		{"full speed", []string{"--steps", "2000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := acting.NewPlanner(t, n.Host(0))
			var all []*sidecar.Sidecar
			for _, h := range n.Hosts() {
				all = append(all, sidecar.Start(t, h, program, "sidecar", "--act", "--handler", "add", "--planner", p.Address, "--state-dir", t.TempDir()))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			mine := hosts.Program{psjob, "--json"}
			count := append(hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(ids), "--count-batch", "300"}, c.args...)
			r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count)}.Start(ctx)
			require.NoError(t, err)
			name := net.JoinHostPort(n.Host(0).IPv4.String(), "9091")
			rng := rand.New(rand.NewPCG(1, 1))
			untilOver(t, r, 20*time.Millisecond, func(over bool) {
				if !over && !p.Busy(name) && plain(t, all) > 20 {
					p.Propose(rng, name, hoststest.JobKeys(t, ids), 20, k)
				}
			})
			for _, s := range all {
				for _, j := range states(t, s) {
					t.Logf("%s: %d batches, held for %d µs at the median; %v", s.Host.Name, len(j.HeldMicros), median(j.HeldMicros), j.PhaseMicros)
				}
			}
		})
	}
}

func median(micros []uint64) uint64 {
	if len(micros) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(micros))[len(micros)/2]
}

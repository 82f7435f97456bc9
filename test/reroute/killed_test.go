package reroute

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/acting"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// requests returns how many requests each proxy has seen, 0 where it does not
// answer.
func requests(proxies []*acting.Restarting) (all []uint64) {
	for _, x := range proxies {
		n := uint64(0)
		if s, err := x.State(); err == nil && len(s.Jobs) == 1 {
			n = s.Jobs[0].Plain + s.Jobs[0].Split
		}
		all = append(all, n)
	}
	return all
}

// counting reports whether all proxies have seen requests of another job than
// before.
func counting(before, now []uint64) bool {
	for i, n := range now {
		if n == 0 || n == before[i] {
			return false
		}
	}
	return true
}

// cut takes a host off the network for a while, and returns for how long.
func cut(t *testing.T, h *hosts.Host, d time.Duration) time.Duration {
	t.Helper()
	require.NoError(t, h.Cut())
	time.Sleep(d)
	require.NoError(t, h.Heal())
	return d
}

// Proxies and the planner are killed and links are cut at random while keys
// move, for a minute, or with -short beside one job. The sums stay exact. PSIDECAR_SOAK=30m does it for half an hour, in which
// 100,000 keys have to move at least.
func TestKilledWhileMoving(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	soak, steps := time.Minute, 30
	if testing.Short() {
		soak = 0 // one job
	}
	if s := os.Getenv("PSIDECAR_SOAK"); s != "" {
		var err error
		if soak, err = time.ParseDuration(s); err != nil {
			t.Fatalf("PSIDECAR_SOAK=%q: want a duration", s)
		}
		steps = 80
	}
	const k, ids = 4, 3000
	n := hoststest.New(t, hosts.Config{Hosts: k})
	p := acting.NewPlanner(t, n.Host(0))
	proxies := acting.StartProxies(t, n, p.Moving()...)
	psjob := hoststest.BuildJob(t, "cmd/psjob")
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	name := net.JoinHostPort(n.Host(0).IPv4.String(), "9091")
	moved, kills, cuts, runs := uint64(0), 0, 0, 0
	for began := time.Now(); runs == 0 || time.Since(began) < soak; runs++ {
		before := requests(proxies)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		mine := hosts.Program{psjob, "--json"}
		goesOn, end := hoststest.WhileTraining(t)
		count := hosts.Program{psjob, "--json", "--model", "count", "--count-keys", strconv.Itoa(ids), "--steps", strconv.Itoa(steps), "--count-while", goesOn}
		r := require.Value(hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(k, count),
			Env: []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200", "PS_DROP_MSG=1"}}.Start(ctx))(t)
		last := make([]uint64, k)
		var nextKill time.Time // from when all workers count: earlier losses PS-lite does not retransmit
		untilOver(t, r, 50*time.Millisecond, func(bool) {
			if !p.Busy(name) {
				p.Propose(rng, name, hoststest.JobKeys(t, ids), 400, k)
			}
			for i, x := range proxies {
				if s, err := x.State(); err == nil && len(s.Jobs) == 1 {
					now := s.Jobs[0].Moved
					if now >= last[i] {
						moved += now - last[i]
					} else {
						moved += now
					}
					last[i] = now
				}
			}
			if moved >= 100 && kills >= 3 {
				end()
			}
			if nextKill.IsZero() && counting(before, requests(proxies)) {
				nextKill = time.Now().Add(500 * time.Millisecond)
			}
			if !nextKill.IsZero() && time.Now().After(nextKill) {
				nextKill = time.Now().Add(time.Duration(500+rng.IntN(1500)) * time.Millisecond)
				switch rng.IntN(6) {
				case 0:
					kills++
					p.Again(func() {})
				case 1:
					cuts++
					nextKill = nextKill.Add(cut(t, n.Host(rng.IntN(k)), time.Duration(500+rng.IntN(1000))*time.Millisecond))
				default:
					kills++
					proxies[rng.IntN(k)].Kill()
				}
			}
		})
		cancel()
		if t.Failed() {
			for _, x := range proxies {
				s, err := x.State()
				t.Logf("%s: %+v %v", x.Host.Name, s.Jobs, err)
			}
			break
		}
	}
	t.Logf("%d jobs, %d keys moved, %d kills, %d cuts", runs, moved, kills, cuts)
	if moved < 100 || kills < 3 {
		t.Errorf("%d keys moved, %d kills: too few to show anything", moved, kills)
	}
	if os.Getenv("PSIDECAR_SOAK") != "" && soak >= 30*time.Minute && moved < 100_000 {
		t.Errorf("only %d keys moved", moved)
	}
}

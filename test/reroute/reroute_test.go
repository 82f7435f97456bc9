// Package reroute checks, with whole jobs on hosts of their own, that requests
// find keys wherever they are: placed before the run, or moved during it. The
// sums that a job ends with are known exactly, and each worker checks what it
// reads.
package reroute

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scatter writes a placement in which every key of the first ids belongs to any
// machine but by chance its own.
func scatter(t testing.TB, ids, k int) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	keys := hoststest.JobKeys(t, ids)
	var owners []int32
	for range keys {
		owners = append(owners, rng.Int32N(int32(k)))
	}
	var servers []int
	for i := range k {
		servers = append(servers, (i+1)%k)
	}
	return hoststest.WritePlacement(t, t.TempDir(), servers, keys, owners)
}

// Keys that were placed before the run are found, with and without PS_RESEND and loss, by several
// workers a host. test/matrix has more ways of using them.
func TestPlaced(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const k = 3
	n := hoststest.New(t, hosts.Config{Hosts: k})
	file := scatter(t, 3000, k)
	var all []*sidecar.Sidecar
	for _, h := range n.Hosts() {
		all = append(all, sidecar.Start(t, h, program, "sidecar", "--placement", file, "--state-dir", t.TempDir()))
	}
	for _, c := range []struct {
		name    string
		args    []string
		env     []string
		workers int
		six     bool
	}{
		{"scalars", nil, nil, k, false},
		{"push and pull in one, lengths, resend and loss", []string{"--count-pushpull", "--count-lens", "--steps", "60"}, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=3"}, k, false},
		{"dialect of 2017, resend and loss", []string{"--steps", "60"}, []string{"PSJOB_DIALECT=dmlc-2017", "PS_RESEND=1", "PS_RESEND_TIMEOUT=100", "PS_DROP_MSG=3"}, k, false},
		{"two workers a host", nil, nil, 2 * k, false},
		{"IPv6", nil, nil, k, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			mine := hosts.Program{psjob, "--json"}
			count := append(hosts.Program{psjob, "--json", "--model", "count", "--count-keys", "3000", "--steps", "150"}, c.args...)
			_, err := hosts.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: hosts.Repeat(k, mine), Workers: hosts.Repeat(c.workers, count), Env: c.env, IPv6: c.six}.Run(ctx)
			require.NoError(t, err)
			if split(t, all) == 0 {
				t.Errorf("no request was split: %+v", states(t, all[0]))
			}
		})
	}
}

// split returns how many requests were split, by all proxies, in all jobs that
// are known.
func split(t *testing.T, all []*sidecar.Sidecar) (sum uint64) {
	t.Helper()
	for _, s := range all {
		for _, j := range states(t, s) {
			sum += j.Split
			if j.Holds != 0 || j.Waiting != 0 {
				t.Errorf("%s: %+v", s.Host.Name, j)
			}
		}
	}
	return sum
}

func states(t *testing.T, s *sidecar.Sidecar) []jobs.State {
	t.Helper()
	c := require.Value(s.Connections(t.Context()))(t)
	return c.Jobs
}

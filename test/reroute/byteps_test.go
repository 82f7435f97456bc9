package reroute

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// bytePSKeys are the keys that testdata/byteps_job.cc has of n, in ascending order, each
// with the server that it is at home with.
func bytePSKeys(n, servers int) (keys []uint64, homes []int32) {
	for s := range int32(servers) {
		for k := int(s); k < n; k += servers {
			keys = append(keys, plan.HomeRange(s, servers).First+uint64(k))
			homes = append(homes, s)
		}
	}
	return keys, homes
}

// placeBytePS writes a placement of these keys, whose owners of says by their place and home.
func placeBytePS(t *testing.T, n, servers int, of func(i int, home int32) int32) string {
	t.Helper()
	keys, homes := bytePSKeys(n, servers)
	ranks, owners := make([]int, servers), make([]int32, len(keys))
	for i := range ranks {
		ranks[i] = i
	}
	for i := range keys {
		owners[i] = of(i, homes[i])
	}
	return hoststest.WritePlacement(t, t.TempDir(), ranks, keys, owners)
}

// Keys of a job on BytePS's own server that were placed before the run are found, and every
// sum of every step is right: with each codec that loses nothing, values of 4 MB, PS_RESEND.
// BYTEPS_BIN names a folder with byteps_job, whose source is in testdata.
func TestBytePSPlaced(t *testing.T) {
	program := filepath.Join(require.Asked(t, "BYTEPS_BIN", "the folder of byteps_job, built as testdata/byteps_job.cc says"), "byteps_job")
	psidecar := hoststest.BuildJob(t, "cmd/psidecar")
	const k = 3
	third := func(i int, home int32) int32 { // every third key, crosswise
		if i%3 == 0 {
			return (home + 1) % k
		}
		return home
	}
	atHome := func(_ int, home int32) int32 { return home }
	for _, c := range []struct {
		name    string
		flags   []string
		of      func(i int, home int32) int32
		keys    int
		bytes   int
		steps   int
		workers int
		env     []string
	}{
		{"at home", nil, atHome, 36, 65536, 40, k, nil},
		{"a third displaced", nil, third, 36, 65536, 40, k, nil},
		{"a third displaced, as it is", []string{"--codec", "none"}, third, 36, 65536, 40, k, nil},
		{"a third displaced, unchanged", []string{"--unchanged"}, third, 36, 65536, 40, k, nil},
		{"a third displaced, two workers a host", nil, third, 36, 65536, 40, 2 * k, nil},
		{"a third displaced, small", nil, third, 300, 400, 40, k, nil},
		{"a third displaced, 4 MB", nil, third, 36, 4096000, 3, k, nil},
		{"a third displaced, 4 MB, as it is", []string{"--codec", "none"}, third, 36, 4096000, 3, k, nil},
		{"all of one server's elsewhere", []string{"--codec", "none"}, func(_ int, home int32) int32 { return home % (k - 1) }, 36, 65536, 40, k, nil},
		{"a third displaced, asynchronous servers off, resend", nil, third, 36, 65536, 20, k, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=2000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := hoststest.New(t, hosts.Config{Hosts: k, Pairs: true})
			flags := append([]string{"--placement", placeBytePS(t, c.keys, k, c.of)}, c.flags...)
			var all []*sidecar.Sidecar
			for _, h := range n.Hosts() {
				all = append(all, sidecar.Start(t, h, psidecar, "sidecar", append(flags, "--state-dir", t.TempDir())...))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			p := hosts.Program{program, fmt.Sprint(c.keys), fmt.Sprint(c.bytes), fmt.Sprint(c.steps)}
			began := time.Now()
			r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: p, Servers: hosts.Repeat(k, p), Workers: hosts.Repeat(c.workers, p),
				Env: append([]string{"DMLC_ENABLE_RDMA=zmq", "DMLC_GROUP_SIZE=1", "BYTEPS_SERVER_ENGINE_THREAD=2"}, c.env...)}.Run(ctx)
			took := time.Since(began)
			if err != nil {
				for _, s := range all {
					t.Logf("%s: %+v", s.Host.Name, states(t, s))
				}
				t.Fatal(err)
			}
			for _, node := range r.Nodes() {
				if want := fmt.Sprintf(": %d values in %d steps, 0 wrong", c.keys*(c.bytes/4)*c.steps, c.steps); node.Role == "worker" && !strings.Contains(node.Stdout.String(), want) {
					t.Errorf("%s %d says %q, want %q in it", node.Role, node.Index, node.Stdout.String(), want)
				}
			}
			// Of each key the first push, and a push and a pull in each step, of each worker.
			perKey, displaced := uint64(c.workers*(1+2*c.steps)), uint64(0)
			_, homes := bytePSKeys(c.keys, k)
			for i, home := range homes {
				if c.of(i, home) != home {
					displaced++
				}
			}
			var plain, rerouted uint64
			for _, s := range all {
				for _, j := range states(t, s) {
					plain, rerouted = plain+j.Plain, rerouted+j.Rerouted
					if j.Split != 0 || j.Lost != 0 {
						t.Errorf("%s: %+v", s.Host.Name, j)
					}
				}
			}
			if len(c.env) == 0 && (rerouted != displaced*perKey || plain != (uint64(c.keys)-displaced)*perKey) || rerouted < displaced*perKey {
				t.Errorf("%d requests were rerouted and %d went as they were, want %d and %d", rerouted, plain, displaced*perKey, (uint64(c.keys)-displaced)*perKey)
			}
			matrix := require.Value(n.Traffic())(t)
			in := make([]float64, k)
			for from := range matrix {
				for to := range matrix[from] {
					in[to] += float64(matrix[from][to].Payload) / 1e6
				}
			}
			t.Logf("%d requests rerouted, %d as they were, %v; MB into each host: %.1f", rerouted, plain, took.Round(time.Millisecond), in)
		})
	}
}

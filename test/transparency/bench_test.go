package transparency

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// BenchmarkTenMillionKeys is the time of jobs that push and pull 10 million
// scalar keys as fast as they can between two hosts, through a proxy on each,
// over the time without: of the C++ peer, and of PS-lite's own benchmark where
// PSLITE_BIN names the folder that it was built in. Rounds alternate; the
// medians' ratios are reported, direct/s is the median in seconds.
func BenchmarkTenMillionKeys(b *testing.B) {
	require.Root(b)
	require.BPF(b)
	own := hosts.Program{hoststest.BuildPeer(b)}
	b.Run("peer", func(b *testing.B) {
		worker := append(slices.Clone(own), "--mode", "bench", "--keys", "10000000", "--rounds", "2")
		compareTimes(b, hosts.Job{Scheduler: own, Servers: hosts.Repeat(2, own), Workers: hosts.Repeat(2, worker)}, peerSeconds)
	})
	b.Run("PS-lite", func(b *testing.B) {
		path := filepath.Join(require.Asked(b, "PSLITE_BIN", "the folder of PS-lite's own test programs"), "test_kv_app_benchmark")
		require.Value(os.Stat(path))(b)
		p := hosts.Program{path}
		compareTimes(b, hosts.Job{Scheduler: p, Servers: hosts.Repeat(2, p), Workers: hosts.Repeat(2, p)}, nil)
	})
}

// peerSeconds is how long the slowest of the peer's workers pushed and pulled.
func peerSeconds(b *testing.B, r *hosts.Running) (most float64) {
	b.Helper()
	for _, n := range r.Workers {
		var w hoststest.PeerWorker
		if err := json.Unmarshal(n.Stdout.Bytes(), &w); err != nil {
			b.Fatalf("worker %d printed %q: %v", n.Index, n.Stdout.Bytes(), err)
		}
		sum := 0.0
		for _, s := range slices.Concat(w.PushSeconds, w.PullSeconds) {
			sum += s
		}
		most = max(most, sum)
	}
	return most
}

// compareTimes runs the job without proxies, with, and with compact, by turns.
// Without a function that says how long it took it is the whole job's time.
func compareTimes(b *testing.B, j hosts.Job, seconds func(*testing.B, *hosts.Running) float64) {
	program := hoststest.BuildJob(b, "cmd/psidecar")
	ways := []struct {
		name string
		net  *hosts.Net
		took []float64
	}{{name: "direct"}, {name: "spliced"}, {name: "compact"}}
	for i := range ways {
		ways[i].net = hoststest.New(b, hosts.Config{Hosts: 2})
		for _, h := range ways[i].net.Hosts() {
			codec := map[string]string{"spliced": "none", "compact": "compact"}[ways[i].name]
			flags := []string{"--log-level", "error", "--sample", "4096", "--codec", codec}
			if i > 0 {
				sidecar.Start(b, h, program, "sidecar", flags...)
			}
		}
	}
	for b.Loop() {
		for i := range ways {
			ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
			j.Hosts = ways[i].net.Hosts()
			began := time.Now()
			r, err := j.Run(ctx)
			cancel()
			if err != nil {
				b.Fatal(fmt.Errorf("%s: %w", ways[i].name, err))
			}
			took := time.Since(began).Seconds()
			if seconds != nil {
				took = seconds(b, r)
			}
			ways[i].took = append(ways[i].took, took)
		}
	}
	median := func(i int) float64 {
		slices.Sort(ways[i].took)
		return ways[i].took[len(ways[i].took)/2]
	}
	b.ReportMetric(median(0), "direct/s")
	b.ReportMetric(median(1)/median(0), "spliced/direct")
	b.ReportMetric(median(2)/median(0), "compact/direct")
	b.ReportMetric(0, "ns/op")
}

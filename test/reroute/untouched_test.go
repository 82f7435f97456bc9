package reroute

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// displace writes a placement of n keys, spread over the whole key space, that
// no job uses: all lie one above a multiple of 2^20.
func displace(t *testing.T, n, k int) string {
	t.Helper()
	run := plan.PlacedRun{}
	for i := range n {
		key := (uint64(1<<63)/uint64(n)*uint64(2*i))>>20<<20 + 1
		run.Keys, run.Owners = append(run.Keys, key), append(run.Owners, int32(i%k))
	}
	run.First, run.Last = run.Keys[0], run.Keys[n-1]
	p := &plan.Placement{K: k, Runs: []plan.PlacedRun{run}}
	for i := range k {
		p.Server = append(p.Server, i)
	}
	file := filepath.Join(t.TempDir(), "placement.json")
	require.NoError(t, plan.WritePlacementFile(file, p))
	return file
}

// TestUntouched measures what jobs pay for a million displaced keys that they do
// not use, beside the same proxies with none, in turns. PSIDECAR_EVAL_ROUNDS is
// how many pairs of runs there are.
func TestUntouched(t *testing.T) {
	require.Measurement(t)
	require.Root(t)
	require.BPF(t)
	program, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	const k = 2
	rounds := 16
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_ROUNDS"), &rounds)
	n := hoststest.New(t, hosts.Config{Hosts: 2 * k})
	fleets := [2][]*hosts.Host{n.Hosts()[:k], n.Hosts()[k:]}
	for i, placed := range []int{2, 1_000_000} {
		file := displace(t, placed, k)
		for _, h := range fleets[i] {
			sidecar.Start(t, h, program, "sidecar", "--placement", file, "--state-dir", t.TempDir(), "--codec", "none", "--sample", "64")
		}
	}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"lists of 10,000 that come again", []string{"--model", "bench", "--keys", "10000", "--rounds", "1000"}},
		{"lists of 100 that come again", []string{"--model", "bench", "--keys", "100", "--rounds", "2500"}},
		{"new lists of 10,000", []string{"--model", "count", "--count-keys", "1000000", "--count-batch", "10000", "--steps", "150"}},
		{"new lists of 100, 64 values each", []string{"--model", "count", "--count-keys", "10000", "--count-batch", "100", "--value-length", "64", "--steps", "1500"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var speeds [2][]float64
			var ratios []float64
			for round := range rounds {
				var now [2]float64
				for i := range fleets {
					i = (i + round) % 2 // each first as often as the other
					now[i] = speed(t, fleets[i], psjob, c.args)
					speeds[i] = append(speeds[i], now[i])
				}
				ratios = append(ratios, now[1]/now[0])
			}
			low, high := confidence(ratios)
			t.Logf("%.1f steps/s without, %.1f with a million displaced keys: %+.1f %% at the median of %d pairs (%+.1f to %+.1f %% with a confidence of 95 %%)",
				quantile(speeds[0], 0.5), quantile(speeds[1], 0.5), 100*(quantile(ratios, 0.5)-1), rounds, 100*(low-1), 100*(high-1))
		})
	}
}

func quantile(list []float64, part float64) float64 {
	return slices.Sorted(slices.Values(list))[int(part*float64(len(list)))]
}

// confidence returns between which values the median lies that a list is a sample
// of, with 95% confidence: so many of the list's values are less than the median
// as heads come of that many coins.
func confidence(list []float64) (low, high float64) {
	sorted, n := slices.Sorted(slices.Values(list)), float64(len(list))
	off := int(max(0, math.Floor(n/2-0.98*math.Sqrt(n))))
	return sorted[off], sorted[len(sorted)-1-off]
}

// speed runs a job with one worker and returns its steps a second.
func speed(t *testing.T, on []*hosts.Host, psjob string, args []string) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	mine := hosts.Program{psjob, "--json"}
	mine = append(mine, args...)
	out, err := hosts.Job{Hosts: on, Scheduler: mine, Servers: hosts.Repeat(len(on), mine), Workers: hosts.Repeat(1, mine)}.Run(ctx)
	require.NoError(t, err)
	var report struct{ Steps, Seconds float64 }
	require.NoError(t, json.Unmarshal(out.Workers[0].Stdout.Bytes(), &report))
	return report.Steps / report.Seconds
}

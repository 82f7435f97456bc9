package codecs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// TestPartsWorthIt measures what --split saves a synchronous job of 25 values of 1 MiB,
// which every worker pushes and pulls whole in each step: bytes of the busiest host beside
// a ring all-reduce's, and steps a second beside one server that has them all.
// PSIDECAR_EVAL_HOSTS is how many hosts there are, 4 where it is not set,
// PSIDECAR_EVAL_WORKERS how many workers each has, 1 where it is not set, and
// PSIDECAR_EVAL_STEPS how many steps are measured.
func TestPartsWorthIt(t *testing.T) {
	require.Measurement(t)
	require.Root(t)
	require.BPF(t)
	const keys, mbit = 25, 200
	k, each, steps := 4, 1, 6
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_HOSTS"), &k)
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_WORKERS"), &each)
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_STEPS"), &steps)
	ring := 4 * float64(keys<<20) * float64(k-1) / float64(k) // sent and received by each host of a ring all-reduce
	var report strings.Builder
	plain := 0.0
	for _, c := range []struct{ name, keyMap, split string }{
		{"on one server", "identity", ""},
		{"in parts on all", "identity", fmt.Sprint(k)},
		{"in as many parts as --split auto finds", "identity", "auto"},
		{"whole values, on all servers", "spread", ""},
	} {
		ok := t.Run(c.name, func(t *testing.T) {
			var parts atomic.Pointer[jobs.PartsState]
			var watching sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			defer watching.Wait()
			defer cancel()
			split := c.split
			run := func(steps int) *Outcome {
				r := Run{Hosts: k, Workers: k * each, Rate: mbit * 1e6, Planned: true,
					Sidecar: []string{"--codec", "none", "--act", "--handler", "add", "--planner-strategy", "off", "--split", cmp.Or(split, "none")},
					Job: []string{"--model", "count", "--key-map", c.keyMap, "--count-keys", fmt.Sprint(keys), "--count-batch", fmt.Sprint(keys),
						"--value-length", "262144", "--steps", fmt.Sprint(steps)}}
				if split == "auto" {
					r.Started = func(sidecars []*sidecar.Sidecar, _ *hosts.Running) {
						watching.Go(func() { watchParts(ctx, sidecars[0], &parts) })
					}
				}
				return r.Do(t)
			}
			name := c.name
			if split == "auto" {
				run(60) // in which it is found
				p := parts.Load()
				if p == nil || p.Target < 2 {
					t.Fatalf("auto found no number of parts: %+v", p)
				}
				name += fmt.Sprintf(" (%d, settled %v, measured %v)", p.Target, p.Settled, p.Samples)
				split = fmt.Sprint(p.Target)
			}
			const first = 6 // by then all is in parts
			few, more := run(first), run(first+steps)
			var bytes []float64
			for i := range more.Hosts {
				bytes = append(bytes, (float64(more.Hosts[i])-float64(few.Hosts[i]))/float64(steps))
			}
			seconds := (more.Workers[0].Seconds - few.Workers[0].Seconds) / float64(steps)
			if plain == 0 {
				plain = seconds
			}
			cpu := (more.CPU["sidecars"] - few.CPU["sidecars"]).Seconds() / float64(steps)
			fmt.Fprintf(&report, "| %s | %.1f | %.2f | %.3f | %.2f | %.2f |\n", name, slices.Max(bytes)/1e6, slices.Max(bytes)/ring, 1/seconds, plain/seconds, cpu)
		})
		if !ok {
			break
		}
	}
	t.Logf("%d hosts, %d workers on each, links of %d Mbit/s, %d values of 1 MiB\n| values | busiest host, MB a step | beside a ring | steps/s | beside one server | sidecars, s a step |\n| --- | --- | --- | --- | --- | --- |\n%s", k, each, mbit, keys, report.String())
}

// watchParts stores the state of a host's values in parts, as long as there is one, until ctx ends.
func watchParts(ctx context.Context, s *sidecar.Sidecar, last *atomic.Pointer[jobs.PartsState]) {
	for ctx.Err() == nil {
		if state, err := s.Connections(ctx); err == nil {
			for _, j := range state.Jobs {
				if j.InParts != nil && len(j.InParts.Samples) > 0 {
					last.Store(j.InParts)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

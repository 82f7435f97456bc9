package watch

import (
	"context"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/test/hosts"
	"github.com/psidecar/psidecar/test/hosts/hoststest"
	"github.com/psidecar/psidecar/test/job"
	"github.com/psidecar/psidecar/test/require"
)

// TestFiveJobs measures how many of the 1,000 hottest keys of each of five jobs, the
// slowest of which moves half a megabyte a second and the fastest what two cores let
// it, an agent with default flags shows 30 s after the first.
func TestFiveJobs(t *testing.T) {
	require.BPF(t)
	require.Measurement(t)
	psjob, psidecar := job.Build(t, "cmd/psjob"), job.Build(t, "cmd/psidecar")
	net := hoststest.New(t, hosts.Config{Hosts: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	a := startAgent(t, psidecar, "--cgroup", net.Cgroup())
	defer a.stop(t)
	var all sync.WaitGroup
	for i, args := range fiveJobs {
		program := job.Program{psjob, "--json"}
		j := job.Job{Scheduler: program, Servers: job.Repeat(2, program), Hosts: net.Hosts(), Port: 9000 + i}
		for w := range 2 {
			log := filepath.Join(dir, strconv.Itoa(i)+"-"+strconv.Itoa(w))
			j.Workers = append(j.Workers, append(append(job.Program{psjob, "--json", "--model", "count", "--access-log", log, "--count-skew", "0.9"}, args.flags...), "--steps", strconv.Itoa(args.steps)))
		}
		all.Go(func() {
			if running, err := j.Run(ctx); err != nil {
				t.Errorf("%s: %v\n%s", args.name, err, running.Workers[0].Stderr.String())
			}
		})
	}
	sleep(ctx, 30*time.Second)
	var jobs web.Jobs
	if err := a.get(ctx, "/api/v1/jobs", nil, &jobs); err != nil {
		t.Fatal(err)
	}
	shown := map[string]map[uint64]web.HotKey{}
	for _, j := range jobs.Jobs {
		var keys web.Keys
		if err := a.get(ctx, "/api/v1/keys", url.Values{"job": {j.Name}, "n": {"1000"}}, &keys); err != nil {
			t.Fatal(err)
		}
		shown[j.Name] = map[uint64]web.HotKey{}
		for _, k := range keys.Hottest {
			shown[j.Name][uint64(k.Key)] = k
		}
	}
	all.Wait()
	var agent web.Agent
	if err := a.get(ctx, "/api/v1/agent", nil, &agent); err != nil {
		t.Fatal(err)
	}
	for i, args := range fiveJobs {
		truth := map[uint64]uint64{}
		for w := range 2 {
			_, keys := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)+"-"+strconv.Itoa(w)))
			for k, n := range keys {
				truth[k] += n.Pulls + n.Pushes
			}
		}
		for _, j := range jobs.Jobs {
			if !strings.HasSuffix(j.Name, ":"+strconv.Itoa(9000+i)) {
				continue
			}
			found := 0
			hottest := keysOfCounts(truth)[:1000]
			for _, k := range hottest {
				if _, ok := shown[j.Name][k]; ok {
					found++
				}
			}
			t.Logf("%s: %.1f MB/s, %.1f steps/s: %d of the %d hottest keys of %d are among the 1,000 shown; keys of one in %d, of %d of %d requests, a count of 1000 is right to %.0f%%, %.2f%% of a core",
				args.name, j.BytesPerSecond/1e6, j.StepsPerSecond, found, len(hottest), len(truth), j.Sampling.OneIn, j.Sampling.Sampled, j.Sampling.Requests, j.Sampling.ErrorPercent, j.Sampling.CostPercent)
			if found < 950 {
				t.Errorf("%s: %d of the 1,000 hottest keys, want 950", args.name, found)
			}
		}
	}
	t.Logf("looking at keys takes %.2f%% of a core, budget %.1f%%", agent.Sampling.CostPercent, agent.Sampling.BudgetPercent)
}

// fiveJobs go on for some 40 s each.
var fiveJobs = []struct {
	name  string
	flags []string
	steps int
}{
	{"0.5 MB/s", []string{"--count-keys", "20000", "--count-batch", "250", "--count-compute", "40ms"}, 900},
	{"5 MB/s", []string{"--count-keys", "20000", "--count-batch", "2500", "--count-compute", "40ms"}, 900},
	{"20 MB/s", []string{"--count-keys", "20000", "--count-batch", "4000", "--value-length", "8", "--count-compute", "40ms"}, 900},
	{"100 MB/s", []string{"--count-keys", "20000", "--count-batch", "4000", "--value-length", "64", "--count-compute", "40ms"}, 800},
	{"1 GB/s", []string{"--count-keys", "4000", "--count-batch", "1500", "--value-length", "4096"}, 250},
}

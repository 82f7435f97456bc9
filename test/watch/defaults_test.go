package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// attached returns how many programs hang on the cgroup's egress.
func attached(t *testing.T, cgroup string) int {
	t.Helper()
	dir := require.Value(os.Open(cgroup))(t)
	defer dir.Close()
	programs := require.Value(link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInetEgress}))(t)
	return len(programs.Programs)
}

// get asks an agent that runs as a process.
func (a *process) get(ctx context.Context, path string, query url.Values, v any) error {
	where := a.url + path
	if len(query) > 0 {
		where += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return json.Unmarshal(body, v)
}

// With the flags that a new user has, which are none, an agent shows nearly all
// of the hottest keys after some hundred steps, says how far its counts can be
// wrong, and is right about that; and what record keeps is enough for simulate.
func TestDefaults(t *testing.T) {
	require.BPF(t)
	psjob, psidecar := hoststest.BuildJob(t, "cmd/psjob"), hoststest.BuildJob(t, "cmd/psidecar")
	for name, args := range map[string][]string{
		"as fast as a small model": {"--steps", "700", "--count-compute", "25ms", "--count-keys", "20000", "--count-batch", "500"},
		"as fast as it can":        {"--steps", "300", "--count-keys", "100000", "--count-batch", "5000", "--async"},
		"slow":                     {"--steps", "50", "--count-compute", "400ms", "--count-keys", "20000", "--count-batch", "2000"},
	} {
		t.Run(name, func(t *testing.T) {
			net := hoststest.New(t, hosts.Config{Hosts: 1})
			dir := t.TempDir()
			file := filepath.Join(dir, "recording")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			a := startAgent(t, psidecar, "--cgroup", net.Cgroup())
			defer a.stop(t)
			record := exec.CommandContext(ctx, psidecar, "record", "--out", file, "--cgroup", net.Cgroup())
			record.Stderr = os.Stderr
			require.NoError(t, record.Start())
			for attached(t, net.Cgroup()) < 2 && ctx.Err() == nil {
				sleep(ctx, time.Millisecond)
			}
			program := hosts.Program{psjob, "--json"}
			j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Hosts: net.Hosts()}
			for i := range 3 {
				p := append(hosts.Program{psjob, "--json", "--model", "count", "--access-log", filepath.Join(dir, strconv.Itoa(i))}, args...)
				j.Workers = append(j.Workers, append(p, "--count-skew", "0.9"))
			}
			if running, err := j.Run(ctx); err != nil {
				t.Fatalf("%v\n%s", err, running.Workers[0].Stderr.String())
			}
			truth := map[uint64]uint64{}
			for i := range 3 {
				_, keys := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
				for k, n := range keys {
					truth[k] += n.Pulls + n.Pushes
				}
			}
			checkShown(t, ctx, a, truth)

			require.NoError(t, record.Process.Signal(os.Interrupt))
			require.NoError(t, record.Wait())
			if out, err := exec.CommandContext(ctx, psidecar, "simulate", file).CombinedOutput(); err != nil {
				t.Errorf("simulate: %v\n%s", err, out)
			}
		})
	}
}

// checkShown checks what the agent shows of the hottest keys.
func checkShown(t *testing.T, ctx context.Context, a *process, truth map[uint64]uint64) {
	t.Helper()
	hottest := keysOfCounts(truth)[:1000]
	var jobs page.Jobs
	var shown page.Keys
	require.NoError(t, a.get(ctx, "/api/v1/jobs", nil, &jobs))
	if len(jobs.Jobs) != 1 {
		t.Fatalf("%d jobs: %s", len(jobs.Jobs), &a.log)
	}
	require.NoError(t, a.get(ctx, "/api/v1/keys", url.Values{"n": {"10000"}}, &shown))
	got := map[uint64]page.HotKey{}
	for _, k := range shown.Hottest {
		got[uint64(k.Key)] = k
	}
	found, right := 0, 0
	for _, key := range hottest {
		k, ok := got[key]
		if !ok {
			continue
		}
		found++
		// Twice what it says, since it is an estimate itself.
		if off := max(k.Accesses, truth[key]) - min(k.Accesses, truth[key]); off <= 2*k.Error+k.Estimated {
			right++
		}
	}
	s := jobs.Jobs[0].Sampling
	t.Logf("%d of the %d hottest keys, %d counted as right as it says; %+v", found, len(hottest), right, s)
	if found < 950 || right < found*9/10 {
		t.Errorf("of the %d hottest keys %d are shown, %d of them counted as right as it says: %+v\n%s", len(hottest), found, right, s, &a.log)
	}
	if s == nil || s.Requests == 0 || s.Sampled == 0 || (s.ErrorPercent > 0) != (s.Sampled < s.Requests) {
		t.Errorf("it says of its sampling %+v", s)
	}
}

// keysOfCounts returns the keys, those with the highest counts first.
func keysOfCounts(counts map[uint64]uint64) []uint64 {
	keys := make([]uint64, 0, len(counts))
	for k := range counts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b uint64) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
	return keys
}

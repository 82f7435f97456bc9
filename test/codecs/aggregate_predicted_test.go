package codecs

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/planner/simulate"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// predicted runs the job without sidecars, recorded on both hosts, and returns what psidecar
// simulate says of its sums.
func (c counted) predicted(t *testing.T, wait string) simulate.Aggregation {
	t.Helper()
	net := hoststest.New(t, hosts.Config{Hosts: 2})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	psidecar, dir := build(t, "cmd/psidecar"), t.TempDir()
	args := []string{"simulate", "--json", "--aggregate-wait", wait}
	var recorders []*exec.Cmd
	for _, h := range net.Hosts() {
		file := filepath.Join(dir, h.Name)
		// A recording has the name of its host, which these hosts share with the machine.
		record := exec.CommandContext(ctx, "unshare", "--uts", "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, h.Name,
			psidecar, "record", "--out", file, "--cgroup", h.Cgroup(), "--sample", "1")
		record.Stderr = os.Stderr
		require.NoError(t, record.Start())
		args, recorders = append(args, file), append(recorders, record)
		require.Eventually(t, h.Name+" is recorded", func() bool { return watched(t, h.Cgroup()) })
	}
	require.Value(c.on(t, net.Hosts()).Run(ctx))(t)
	for _, r := range recorders {
		require.NoError(t, r.Process.Signal(os.Interrupt))
		require.NoError(t, r.Wait())
	}
	out, err := exec.CommandContext(ctx, psidecar, args...).Output()
	if err != nil {
		t.Fatalf("simulate: %v: %s", err, out)
	}
	var report struct {
		Aggregation simulate.Aggregation `json:"aggregation"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	return report.Aggregation
}

// watched reports whether a cgroup's traffic is observed.
func watched(t *testing.T, cgroup string) bool {
	t.Helper()
	dir := require.Value(os.Open(cgroup))(t)
	defer dir.Close()
	programs := require.Value(link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInetEgress}))(t)
	return len(programs.Programs) > 0
}

// What simulate says from a recording of a job without sidecars is what a proxy then spares, of
// equal key lists and of differing ones, but for the first steps, in which more is new to it.
func TestSumsAreAsPredicted(t *testing.T) {
	require.BPF(t)
	for name, c := range map[string]counted{
		"equal lists":     {workers: 4, keys: 3000, width: 10, steps: 40, job: []string{"--count-most", "50000"}},
		"differing lists": {workers: 4, keys: 6000, batch: 3000, width: 10, steps: 40, job: []string{"--count-most", "50000"}},
	} {
		t.Run(name, func(t *testing.T) {
			said := c.predicted(t, "2s")
			c.sidecar = []string{"--handler", "add", "--aggregate", "host", "--aggregate-wait", "2s"}
			is := c.do(t).aggregate
			spared := said.Forms[0].Total - said.Forms[2].Total
			t.Logf("predicted: %+v, %.0f bytes spared; is %+v", said, spared, is)
			if spared == 0 || float64(is.SparedBytes) < 0.85*spared || float64(is.SparedBytes) > 1.01*spared {
				t.Errorf("%d bytes are spared, predicted were %.0f", is.SparedBytes, spared)
			}
			if pushes := uint64(c.workers * c.steps); said.Pushes != pushes {
				t.Errorf("%d pushes were recorded of %d", said.Pushes, pushes)
			}
		})
	}
}

package transparency

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// A training is a logistic regression on a text set, synchronous, so that every
// run of it ends with the same bits.
type training struct {
	set          string
	steps, batch int
	mbit         uint64 // of every host's link, each way; 0: unlimited
}

// outcome is what a training came to.
type outcome struct {
	perStep        float64 // bytes that crossed between hosts
	stepsPerSecond float64
	digests        []string // of the servers, by rank
}

// TestBytes: what crosses hosts is at least three times less with compact alone,
// and the result the same to the last bit.
func TestBytes(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	x := training{set: "rcv1-excerpt.libsvm.xz", steps: 100, batch: 64}
	without, with := x.both(t)
	if factor := without.perStep / with.perStep; factor < 3 {
		t.Errorf("%.0f bytes a step without compact, %.0f with: %.2f times fewer, want 3", without.perStep, with.perStep, factor)
	}
}

// TestBytesTable prints the table of make eval-proxy.
func TestBytesTable(t *testing.T) {
	require.Measurement(t)
	require.Root(t)
	require.BPF(t)
	var table strings.Builder
	fmt.Fprint(&table, "\n| data | steps | batch | Mbit/s | kB a step | with compact | times fewer | steps/s | with compact | times faster |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, x := range []training{
		{"news20-rebuilt.libsvm.xz", 234, 64, 0}, {"news20-rebuilt.libsvm.xz", 234, 64, 200}, {"news20-rebuilt.libsvm.xz", 234, 64, 50},
		{"rcv1-excerpt.libsvm.xz", 372, 32, 0}, {"rcv1-excerpt.libsvm.xz", 372, 32, 200}, {"rcv1-excerpt.libsvm.xz", 372, 32, 50},
	} {
		a, b := x.both(t)
		fmt.Fprintf(&table, "| %s | %d | %d | %d | %.0f | %.0f | %.2f | %.1f | %.1f | %.2f |\n", x.set, x.steps, x.batch, x.mbit,
			a.perStep/1e3, b.perStep/1e3, a.perStep/b.perStep, a.stepsPerSecond, b.stepsPerSecond, b.stepsPerSecond/a.stepsPerSecond)
	}
	t.Log(table.String())
}

// both runs the training without proxies and with, on the same hosts.
func (x training) both(t *testing.T) (without, with outcome) {
	data := unpacked(t, require.Dataset(t, x.set))
	n := hoststest.New(t, hosts.Config{Hosts: hostCount, Pairs: true})
	for _, h := range n.Hosts() {
		if err := h.SetRate(x.mbit * 1e6); x.mbit > 0 && err != nil {
			t.Fatal(err)
		}
	}
	psjob, program := hoststest.BuildJob(t, "cmd/psjob"), hoststest.BuildJob(t, "cmd/psidecar")
	without = x.run(t, n, psjob, data)
	for _, h := range n.Hosts() {
		sidecar.Start(t, h, program, "sidecar", "--log-level", "warn", "--sample", "4096", "--codec", "compact")
	}
	with = x.run(t, n, psjob, data)
	if !slices.Equal(without.digests, with.digests) {
		t.Errorf("%s: the servers end with %v, with compact with %v", x.set, without.digests, with.digests)
	}
	t.Logf("%+v: %.0f bytes and %.1f steps/s, with compact %.0f and %.1f", x, without.perStep, without.stepsPerSecond, with.perStep, with.stepsPerSecond)
	return without, with
}

// run trains once.
func (x training) run(t *testing.T, n *hosts.Net, psjob, data string) (o outcome) {
	t.Helper()
	node := hosts.Program{psjob, "--json", "--data", data, "--unit-rows", "--steps", strconv.Itoa(x.steps), "--batch", strconv.Itoa(x.batch)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	before := payload(t, n)
	r, err := hosts.Job{Hosts: n.Hosts(), Scheduler: node, Servers: hosts.Repeat(hostCount, node), Workers: hosts.Repeat(hostCount, node)}.Run(ctx)
	require.NoError(t, err)
	o.perStep = float64(payload(t, n)-before) / float64(x.steps)
	o.digests = make([]string, hostCount)
	for _, node := range slices.Concat(r.Servers, r.Workers) {
		var report struct {
			Rank           int
			Digest         string
			StepsPerSecond float64 `json:"steps_per_second"`
		}
		if err := json.Unmarshal(node.Stdout.Bytes(), &report); err != nil {
			t.Fatalf("%s %d printed %q: %v", node.Role, node.Index, node.Stdout.Bytes(), err)
		}
		if node.Role == "server" {
			o.digests[report.Rank] = report.Digest
		}
		o.stepsPerSecond += report.StepsPerSecond / hostCount
	}
	return o
}

// payload is how many bytes of TCP have crossed between hosts.
func payload(t *testing.T, n *hosts.Net) (sum uint64) {
	t.Helper()
	matrix := require.Value(n.Traffic())(t)
	for _, row := range matrix {
		for _, pair := range row {
			sum += pair.Payload
		}
	}
	return sum
}

// unpacked is a data set as text, so that no worker has to unpack it.
func unpacked(t *testing.T, path string) string {
	t.Helper()
	text := require.Value(os.Create(filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(path), ".xz"))))(t)
	cmd := exec.Command(require.Program(t, "xz"), "--decompress", "--stdout", path)
	cmd.Stdout = text
	if err := cmd.Run(); err != nil {
		t.Fatalf("unpacking %s: %v", path, err)
	}
	require.NoError(t, text.Close())
	return text.Name()
}

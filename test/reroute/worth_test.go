package reroute

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/test/codecs"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// parts is what psidecar partition made.
type parts struct {
	dir   string
	max   float64 // parameters of the busiest machine, predicted
	batch int     // samples of the machine that has most
}

// divide partitions the data for k machines.
func divide(t *testing.T, program, input, algorithm string, k int) parts {
	t.Helper()
	p := parts{dir: t.TempDir()}
	cmd := exec.CommandContext(t.Context(), program, "partition", "--input", input, "-k", fmt.Sprint(k), "--algorithm", algorithm, "--key-map", "spread", "--out", p.dir, "--json")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("psidecar partition: %v\n%s", err, log.String())
	}
	var report struct {
		Traffic        struct{ Max float64 }
		DataPerMachine []int `json:"data_per_machine"`
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	p.max, p.batch = report.Traffic.Max, slices.Max(report.DataPerMachine)
	return p
}

// cost is what an epoch of a training run costs, once it is under way.
type cost struct {
	busiest  float64 // bytes of TCP payload of the busiest host, both ways
	seconds  float64
	job      float64 // seconds of a processor, of all workers and servers
	sidecars float64
	loss     float64 // at the end
}

// An epoch is a step of each worker, whose batch is all of its shard. Runs of
// these lengths are compared: what a job moves and computes at its start and at
// its end, when it is scored, is not of an epoch.
const fewEpochs, moreEpochs = 10, 60

// measure trains a logistic regression on hosts with links of that speed, for a
// few epochs and for some more.
func measure(t *testing.T, k, mbit int, data parts, flags ...string) (c cost) {
	t.Helper()
	run := func(epochs int) (o *codecs.Outcome) {
		ok := t.Run(fmt.Sprintf("%d epochs", epochs), func(t *testing.T) {
			o = codecs.Run{
				Hosts: k, Rate: uint64(mbit) * 1e6, Sidecar: append([]string{"--sample", "64", "--planner-strategy", "off"}, flags...),
				Job: []string{"--model", "lr", "--data", data.dir, "--batch", fmt.Sprint(data.batch), "--epochs", fmt.Sprint(epochs), "--curve-every", "1"},
			}.Do(t)
		})
		if !ok {
			t.FailNow()
		}
		return o
	}
	few, more := run(fewEpochs), run(moreEpochs)
	const n = moreEpochs - fewEpochs
	for i := range more.Hosts {
		c.busiest = max(c.busiest, float64(more.Hosts[i]-few.Hosts[i])/n)
	}
	for _, w := range more.Workers {
		if len(w.Curve) != moreEpochs {
			t.Fatalf("worker %d has made %d steps in %d epochs", w.Rank, len(w.Curve), moreEpochs)
		}
		c.seconds = max(c.seconds, (w.Curve[moreEpochs-1].Seconds-w.Curve[fewEpochs-1].Seconds)/n)
	}
	c.job = (more.CPU["workers"] + more.CPU["servers"] - few.CPU["workers"] - few.CPU["servers"]).Seconds() / n
	c.sidecars = (more.CPU["sidecars"] - few.CPU["sidecars"]).Seconds() / n
	at := slices.IndexFunc(more.Workers, func(w train.WorkerReport) bool { return w.Loss != nil && w.AllWorkers })
	if at < 0 {
		t.Fatal("no worker says what the loss is")
	}
	c.loss = *more.Workers[at].Loss
	return c
}

// TestWorthIt measures, on real text, what dividing data and parameters before a
// run saves (DWW21 section 6), and what is left with compact and threshold. Each
// of its subtests stands by itself, for one of them takes minutes.
// PSIDECAR_EVAL_MBIT is the speed of the links, 100 where it is not set.
func TestWorthIt(t *testing.T) {
	require.Measurement(t)
	require.Root(t)
	require.BPF(t)
	input := require.Dataset(t, "rcv1-excerpt.libsvm.xz")
	program := hoststest.BuildJob(t, "cmd/psidecar")
	const k = 8
	mbit := 100
	fmt.Sscan(os.Getenv("PSIDECAR_EVAL_MBIT"), &mbit)
	random, best := divide(t, program, input, "random", k), divide(t, program, input, "best", k)
	placement := filepath.Join(best.dir, "placement.json")
	var report strings.Builder
	for _, c := range []struct {
		name  string
		flags []string
	}{
		{"best", []string{"--placement", placement, "--codec", "none"}},
		{"best and compact", []string{"--placement", placement}},
		{"best, compact, threshold 0.99", []string{"--placement", placement, "--handler", "add", "--threshold", "0.99"}},
		{"best, compact, threshold 0.99, unchanged", []string{"--placement", placement, "--handler", "add", "--threshold", "0.99", "--unchanged"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := measure(t, k, mbit, random, "--codec", "none")
			m := measure(t, k, mbit, best, c.flags...)
			var table strings.Builder
			row := func(name string, c cost, max float64) {
				// A parameter takes 8 bytes to ask for, 12 in the answer, 12 in a push.
				fmt.Fprintf(&table, "| %s | %.1f | %.1f | %.2f | %.1f | %.2f | %.0f | %.0f | %.4f |\n", name, c.busiest/1e3, max*32/1e3, home.busiest/c.busiest,
					c.seconds*1e3, home.seconds/c.seconds, c.job*1e3, c.sidecars*1e3, c.loss)
			}
			row("random data, home", home, random.max)
			row(c.name, m, best.max)
			text := fmt.Sprintf("logistic regression, %d hosts, %d Mbit/s, %d epochs\n\n| | kB an epoch, busiest host | by the partition | times fewer | ms an epoch | times faster | ms of a processor an epoch: job | sidecars | loss |\n|:--|--:|--:|--:|--:|--:|--:|--:|--:|\n%s",
				k, mbit, moreEpochs, table.String())
			t.Log(text)
			report.WriteString(text + "\n")
		})
	}
	if dir := os.Getenv("PSIDECAR_EVAL_OUT"); dir != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "worth.md"), []byte(report.String()), 0o644))
	}
}

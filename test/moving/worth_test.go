package moving

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hosts"
	"github.com/psidecar/psidecar/test/hosts/hoststest"
	"github.com/psidecar/psidecar/test/job"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// parts is what psidecar partition made.
type parts struct {
	dir string
	max float64 // parameters of the busiest machine, predicted
}

// divide partitions the data for k machines.
func divide(t *testing.T, program, input, algorithm string, k string) parts {
	t.Helper()
	p := parts{dir: t.TempDir()}
	cmd := exec.CommandContext(t.Context(), program, "partition", "--input", input, "-k", k, "--algorithm", algorithm, "--key-map", "spread", "--out", p.dir, "--json")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("psidecar partition: %v\n%s", err, log.String())
	}
	var report struct{ Traffic struct{ Max float64 } }
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	p.max = report.Traffic.Max
	return p
}

// measured is what a training run cost.
type measured struct {
	bytes   []float64 // of TCP payload of each host, both ways
	busiest float64   // a step, see perStep
	step    float64   // seconds
	loss    float64
}

// perStep trains for a few steps and for some more, and returns the busiest
// host's bytes of the steps between: what a job moves at its start and at its
// end, when it is scored, is not of a step.
func perStep(t *testing.T, train func(t *testing.T, steps int) measured) (m measured) {
	t.Helper()
	const few, more = 4, 12
	var short measured
	ok := t.Run("few", func(t *testing.T) { short = train(t, few) })
	if !ok || !t.Run("more", func(t *testing.T) { m = train(t, more) }) {
		t.FailNow()
	}
	for i := range m.bytes {
		m.busiest = max(m.busiest, (m.bytes[i]-short.bytes[i])/(more-few))
	}
	return m
}

// train runs logistic regression with whole shards as batches on hosts with
// links of that speed.
func train(t *testing.T, program, psjob string, k int, rate uint64, data string, steps int, flags ...string) measured {
	t.Helper()
	n := hoststest.New(t, hosts.Config{Hosts: k, Rate: rate, Pairs: true})
	for _, h := range n.Hosts() {
		sidecar.Start(t, h, program, "sidecar", append([]string{"--sample", "64", "--planner-strategy", "off", "--state-dir", t.TempDir()}, flags...)...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	mine := job.Program{psjob, "--json", "--model", "lr", "--data", data, "--batch", "1000000", "--epochs", strconv.Itoa(steps)}
	before, err := n.Traffic()
	if err != nil {
		t.Fatal(err)
	}
	out, err := job.Job{Hosts: n.Hosts(), Scheduler: mine, Servers: job.Repeat(k, mine), Workers: job.Repeat(k, mine)}.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	after, err := n.Traffic()
	if err != nil {
		t.Fatal(err)
	}
	var m measured
	var report struct {
		Steps   float64
		Seconds float64
		Loss    *float64
	}
	for _, worker := range out.Workers {
		if err := json.Unmarshal(worker.Stdout.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		m.step = max(m.step, report.Seconds/report.Steps)
		if report.Loss != nil {
			m.loss = max(m.loss, *report.Loss)
		}
	}
	for i := range after {
		sum := uint64(0)
		for j := range after {
			if i != j {
				sum += after[i][j].Payload - before[i][j].Payload + after[j][i].Payload - before[j][i].Payload
			}
		}
		m.bytes = append(m.bytes, float64(sum))
	}
	return m
}

// TestWorthIt measures, on real text, what dividing data and parameters before a
// run saves (DWW21 section 6), and what is left with compact and threshold.
func TestWorthIt(t *testing.T) {
	if os.Getenv("PSIDECAR_EVAL") == "" {
		t.Skip("takes minutes: set PSIDECAR_EVAL=1 to measure")
	}
	require.Root(t)
	require.BPF(t)
	input := require.Dataset(t, "rcv1-excerpt.libsvm.xz")
	program, psjob := job.Build(t, "cmd/psidecar"), job.Build(t, "cmd/psjob")
	const k = 8
	random, best := divide(t, program, input, "random", "8"), divide(t, program, input, "best", "8")
	placement := filepath.Join(best.dir, "placement.json")
	const rate = 100e6
	measure := func(name, data string, flags ...string) (m measured) {
		t.Run(name, func(t *testing.T) {
			m = perStep(t, func(t *testing.T, steps int) measured {
				return train(t, program, psjob, k, rate, data, steps, flags...)
			})
		})
		return m
	}
	// A parameter takes 8 bytes to ask for, 12 in the answer, 12 in a push.
	base := measure("home", random.dir, "--codec", "none")
	t.Logf("random data, home: %.0f kB a step at the busiest host (%.0f by the partition), %.3f s, loss %.4f",
		base.busiest/1e3, random.max*32/1e3, base.step, base.loss)
	for _, c := range []struct {
		name  string
		flags []string
	}{
		{"best", []string{"--placement", placement, "--codec", "none"}},
		{"best and compact", []string{"--placement", placement}},
		{"best, compact, threshold 0.99", []string{"--placement", placement, "--threshold", "0.99"}},
	} {
		m := measure(c.name, best.dir, c.flags...)
		t.Logf("%s: %.0f kB a step (%.0f by the partition), %.2f x fewer; %.3f s, %.2f x faster; loss %.4f",
			c.name, m.busiest/1e3, best.max*32/1e3, base.busiest/m.busiest, m.step, base.step/m.step, m.loss)
	}
}

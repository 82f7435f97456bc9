package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/demo"
	"github.com/psidecar/psidecar/test/require"
)

// buildPrograms builds psidecar and psjob into a folder and returns it.
func buildPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), require.Program(t, "go"), "build", "-o", dir+"/", ".", "../psjob").CombinedOutput()
	if err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	return dir
}

func TestDemo(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	dir := buildPrograms(t)
	cmd := exec.CommandContext(t.Context(), dir+"/psidecar", "demo", "--hosts=2", "--steps=20", "--link-mbit=0", "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	told := stderr.String()
	if first, _, _ := strings.Cut(told, "phase 1 of 6"); !strings.Contains(first, "page: http://127.0.0.1:") {
		t.Errorf("the page's address does not come before the first phase: %s", told)
	}
	if !strings.Contains(told, "phase 6 of 6, threshold") || !strings.Contains(told, "Without loss psidecar sent ") {
		t.Errorf("neither progress nor a sentence at the end: %s", told)
	}
	for _, want := range []string{"phase 4 of 6, placement: partitioning data and keys\n", "phase 4 of 6, placement: the job, with", "phase 5 of 6, reroute: first with all keys at home\n", "phase 5 of 6, reroute: keys moved to"} {
		if !strings.Contains(told, want) {
			t.Errorf("progress lacks %q: %s", want, told)
		}
	}
	var phases []string
	for line := range strings.Lines(stdout.String()) {
		var r struct {
			Phase          string   `json:"phase"`
			StepsPerSecond float64  `json:"steps_per_second"`
			BytesPerStep   float64  `json:"bytes_per_step"`
			MaxHostBytes   float64  `json:"max_host_bytes_per_step"`
			Loss           *float64 `json:"loss"`
			Accuracy       *float64 `json:"accuracy"`
			JobCPU         float64  `json:"job_cpu_seconds"`
			PsidecarCPU    float64  `json:"psidecar_cpu_seconds"`
		}
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		phases = append(phases, r.Phase)
		if r.StepsPerSecond <= 0 || r.Phase != "reroute" && (r.Loss == nil || *r.Loss <= 0 || *r.Loss > 0.7 || r.Accuracy == nil || *r.Accuracy < 0.6) {
			t.Errorf("phase %s: %s", r.Phase, line)
		}
		// All but the baseline have psidecar beside them, which has little to do in so
		// few steps.
		if r.JobCPU <= 0 || r.PsidecarCPU < 0 || r.Phase != "baseline" && r.PsidecarCPU == 0 {
			t.Errorf("phase %s: %v processor seconds of the job, %v of psidecar", r.Phase, r.JobCPU, r.PsidecarCPU)
		}
		// Of two hosts each moves all that is moved: it sends one half and gets
		// the other.
		if r.BytesPerStep <= 0 || r.MaxHostBytes != r.BytesPerStep {
			t.Errorf("phase %s: %v bytes a step, %v at the busiest of two hosts", r.Phase, r.BytesPerStep, r.MaxHostBytes)
		}
	}
	if got := strings.Join(phases, " "); got != "baseline observe compact placement reroute threshold" {
		t.Errorf("phases %q", got)
	}
}

func TestDemoUsage(t *testing.T) {
	for _, args := range [][]string{{"--hosts=1"}, {"--steps=0"}, {"--batch=-1"}, {"--data=x", "surplus"}} {
		if code, _, stderr := runTest(t, nil, append([]string{"demo"}, args...)...); code != 2 {
			t.Errorf("demo %v: exit code %d, stderr %q", args, code, stderr)
		}
	}
}

// Each row has the cores that the job and psidecar kept busy, that of the job at
// home too.
func TestDemoRows(t *testing.T) {
	var out strings.Builder
	d := demoOutput{env: env{stdout: &out}, live: cli.NewLiveLine(nil, &out)}
	loss := 0.5
	for _, r := range []demo.Result{
		{Phase: "baseline", StepsPerSecond: 10, BytesPerStep: 2000, MaxHostBytes: 1000, Loss: &loss, Accuracy: &loss, JobCPU: 6, Seconds: 4},
		{Phase: "reroute", StepsPerSecond: 9, JobCPU: 2, PsidecarCPU: 1, Seconds: 4, Home: &demo.Result{JobCPU: 3, PsidecarCPU: 0.5, Seconds: 2}},
	} {
		if err := d.report(r); err != nil {
			t.Fatal(err)
		}
	}
	want := `phase       steps/s   kB per step   busiest host's kB     loss  accuracy  cores job / psidecar
baseline       10.0           2.0                 1.0   0.5000    50.00%           1.50 / 0.00
           another job, whose hot keys wander; first with all keys at home:
at home         0.0           0.0                 0.0        -         -           1.50 / 0.25
reroute         9.0           0.0                 0.0        -         -           0.50 / 0.25
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// The sentences at the end say what was measured, also where it is no gain.
func TestVerdict(t *testing.T) {
	accuracy, less := 0.9899, 0.9893
	results := []demo.Result{
		{Phase: "baseline", StepsPerSecond: 45.1, BytesPerStep: 520e3, Accuracy: &accuracy},
		{Phase: "compact", StepsPerSecond: 68.4, BytesPerStep: 143e3, Accuracy: &accuracy},
		{Phase: "reroute", StepsPerSecond: 24.6, BytesPerStep: 50e3, Home: &demo.Result{StepsPerSecond: 24.6, BytesPerStep: 46e3}},
		{Phase: "threshold", StepsPerSecond: 30, BytesPerStep: 59e3, Accuracy: &less},
	}
	want := []string{
		"Without loss psidecar sent 3.6 times fewer bytes and made the job 1.5 times as fast.",
		"Moving keys to their users, psidecar sent 1.09 times as many bytes and made the job 1.0 times as fast, compared with the same job with all keys at home.",
		"With data and keys placed, and 99% of pushed values held back until they add up, psidecar sent 8.8 times fewer bytes and made the job 0.67 times as fast, which is slower; accuracy 98.93% instead of 98.99%.",
		"If it is slower: all hosts and their proxies share this machine's 2 cores; psidecar gains time where the network is the bottleneck.",
	}
	if got := demo.Verdict(results, 2); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := demo.Verdict(results[:2], 2); len(got) != 1 {
		t.Errorf("of a job that is faster: %q", got)
	}
}

// In a pipe each piece of news is a line, and nothing is cleared.
func TestLiveLine(t *testing.T) {
	var out strings.Builder
	l := cli.NewLiveLine(&out, &out)
	l.Say("one")
	l.Clear()
	l.Say("")
	l.Say("two")
	if out.String() != "one\ntwo\n" {
		t.Errorf("%q", out.String())
	}
}

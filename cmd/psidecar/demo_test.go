package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

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
	require.Time(t)
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
	if !strings.Contains(told, "phase 6 of 6, threshold") || !strings.Contains(told, "Without loss psidecar made the job ") {
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
		// Of two hosts each moves all that is moved: it sends one half and gets the other.
		// Later there are reports to the planner's host too.
		if r.BytesPerStep <= 0 || r.MaxHostBytes > r.BytesPerStep || r.Phase == "baseline" && r.MaxHostBytes != r.BytesPerStep {
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

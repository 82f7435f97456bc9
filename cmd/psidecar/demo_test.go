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
	require.Root(t)
	require.BPF(t)
	dir := buildPrograms(t)
	cmd := exec.CommandContext(t.Context(), dir+"/psidecar", "demo", "--hosts=2", "--steps=20", "--link-mbit=0", "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
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

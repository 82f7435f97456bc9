package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/plan"
)

// TestStreamThenScore streams one file and a folder of shards of the same rows,
// and has score judge what was written.
func TestStreamThenScore(t *testing.T) {
	data, folder := topicData(t, 80, 4), t.TempDir()
	text, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	for name, part := range map[string][]string{"a.libsvm": lines[:30], "b.libsvm": lines[30:31], "c.libsvm": lines[31:], ".hidden": {"x"}} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(strings.Join(part, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var assignments []string
	for _, tc := range []struct{ name, input, keyMap string }{{"file", data, "identity"}, {"folder of shards", folder, "spread"}} {
		t.Run(tc.name, func(t *testing.T) {
			out := t.TempDir()
			code, stdout, stderr := runTest(t, nil, "partition", "--stream", "--input", tc.input, "-k", "4", "--memory", "2MiB", "--key-map", tc.keyMap, "--out", out, "--json")
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			var made, scored map[string]any
			if err := json.Unmarshal([]byte(stdout), &made); err != nil {
				t.Fatal(err)
			}
			assignment := filepath.Join(out, "assignment.txt")
			code, stdout, stderr = runTest(t, nil, "score", "--input", data, "-k", "4", "--assignment", assignment, "--json")
			if code != 0 {
				t.Fatalf("score: exit code %d: %s", code, stderr)
			}
			if err := json.Unmarshal([]byte(stdout), &scored); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"k", "samples", "parameters", "edges", "traffic", "data_per_machine", "bound"} {
				if fmt.Sprint(made[key]) != fmt.Sprint(scored[key]) {
					t.Errorf("%s: partition says %v, score says %v", key, made[key], scored[key])
				}
			}
			most := func(report map[string]any) float64 { return report["random"].(map[string]any)["max"].(float64) }
			if r := most(made) / most(scored); math.Abs(r-1) > 0.15 {
				t.Errorf("random baseline %v, score says %v", most(made), most(scored))
			}
			if made["algorithm"] != "stream" || made["streaming"] == nil {
				t.Errorf("algorithm %v, streaming %v", made["algorithm"], made["streaming"])
			}
			p, err := plan.ReadPlacementFile(filepath.Join(out, "placement.json"))
			if err != nil || p.K != 4 || p.Len() != 40 {
				t.Errorf("placement %+v, %v", p, err)
			}
			rows := 0
			for i := range 4 {
				shard, err := os.ReadFile(filepath.Join(out, fmt.Sprintf("shard-%05d.libsvm", i)))
				if err != nil {
					t.Fatal(err)
				}
				rows += strings.Count(string(shard), "\n")
			}
			files, err := filepath.Glob(filepath.Join(out, "*"))
			if err != nil || rows != 80 || len(files) != 6 {
				t.Errorf("%d rows in shards, files %v, %v", rows, files, err)
			}
			lines, err := os.ReadFile(assignment)
			if err != nil {
				t.Fatal(err)
			}
			assignments = append(assignments, string(lines))
		})
	}
	if len(assignments) == 2 && assignments[0] != assignments[1] {
		t.Error("one file and its shards came out differently")
	}
}

func TestStreamTable(t *testing.T) {
	code, stdout, stderr := runTest(t, nil, "partition", "--stream", "--input", topicData(t, 80, 4), "-k", "4", "--hash-bins", "16")
	if code != 0 || !strings.Contains(stdout, "\nstream ") || !strings.Contains(stdout, "streamed: 4 passes") || stderr != "" {
		t.Errorf("exit code %d, stderr %q, stdout\n%s", code, stderr, stdout)
	}
}

func TestStreamErrors(t *testing.T) {
	data := topicData(t, 80, 4)
	empty := t.TempDir()
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"too little memory", []string{"--input", data, "--stream", "--memory", "100KiB"}, 2, "102400 bytes of memory are too little for 2 machines: at least"},
		{"memory that is no number", []string{"--input", data, "--stream", "--memory", "1.5GB"}, 2, `--memory: "1.5GB": want bytes as a whole number`},
		{"memory beyond all numbers", []string{"--input", data, "--stream", "--memory", "9223372036854775807GiB"}, 2, "--memory"},
		{"no passes", []string{"--input", data, "--stream", "--passes", "0"}, 2, "0 passes: at least 1"},
		{"another algorithm", []string{"--input", data, "--stream", "--algorithm", "best"}, 2, "--algorithm is not for --stream"},
		{"theta", []string{"--input", data, "--stream", "--theta", "9"}, 2, "--theta is not for --stream"},
		{"memory without stream", []string{"--input", data, "--memory", "1GiB"}, 2, "--memory is for --stream only"},
		{"no such scratch folder", []string{"--input", data, "--stream", "--scratch", "/nonexistent"}, 1, "/nonexistent"},
		{"empty folder", []string{"--input", empty, "--stream"}, 1, "has no files"},
		{"no such input", []string{"--input", "/nonexistent", "--stream"}, 1, "/nonexistent"},
		{"more machines than samples", []string{"--input", data, "--stream", "-k", "81"}, 1, "infeasible: 81 machines for 80 samples"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := runTest(t, nil, append([]string{"partition", "-k", "2"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || stdout != "" {
				t.Errorf("exit code %d (want %d), stdout %q, stderr %q (want %q in it)", code, tc.code, stdout, stderr, tc.want)
			}
		})
	}
	bad := filepath.Join(t.TempDir(), "bad.libsvm")
	if err := os.WriteFile(bad, []byte("1 1:1\n1 1:x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	code, _, stderr := runTest(t, nil, "partition", "--stream", "--input", bad, "-k", "1", "--out", out)
	if code != 1 || !strings.Contains(stderr, "bad.libsvm, line 2") || strings.Count(stderr, "bad.libsvm") != 1 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(out, "placement.json")); err == nil {
		t.Error("a failed run left a placement")
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/require"
)

// topicData writes n rows on k topics of ten features each, in turn.
func topicData(t *testing.T, n, k int) string {
	t.Helper()
	var text strings.Builder
	for row := range n {
		fmt.Fprintf(&text, "%d", row%2)
		for i := range 6 {
			fmt.Fprintf(&text, " %d:1", 100*(row%k)+(row/k+i)%10)
		}
		text.WriteByte('\n')
	}
	path := filepath.Join(t.TempDir(), "data.libsvm")
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

func TestPartitionThenScore(t *testing.T) {
	data, dir := topicData(t, 80, 4), t.TempDir()
	for _, name := range prerun.AlgorithmNames() {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(dir, name)
			code, stdout, stderr := runTest(t, nil, "partition", "--input", data, "-k", "4", "--algorithm", name, "--out", out, "--json")
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			var made, scored map[string]any
			require.NoError(t, json.Unmarshal([]byte(stdout), &made))
			code, stdout, stderr = runTest(t, nil, "score", "--input", data, "-k", "4", "--assignment", filepath.Join(out, "assignment.txt"), "--json")
			if code != 0 {
				t.Fatalf("score: exit code %d: %s", code, stderr)
			}
			require.NoError(t, json.Unmarshal([]byte(stdout), &scored))
			if made["algorithm"] != name || scored["algorithm"] != "given" {
				t.Errorf("algorithms %v and %v", made["algorithm"], scored["algorithm"])
			}
			for _, key := range []string{"k", "samples", "parameters", "edges", "traffic", "data_per_machine", "bound", "random", "improvement_percent"} {
				if _, ok := made[key]; !ok {
					t.Errorf("no %q in the report", key)
				}
				if fmt.Sprint(made[key]) != fmt.Sprint(scored[key]) {
					t.Errorf("%s: partition says %v, score says %v", key, made[key], scored[key])
				}
			}
			p, err := plan.ReadPlacementFile(filepath.Join(out, "placement.json"))
			if err != nil || p.K != 4 || p.Len() != 40 {
				t.Errorf("placement %+v, %v", p, err)
			}
		})
	}
}

func TestReportFields(t *testing.T) {
	data := topicData(t, 80, 4)
	code, stdout, stderr := runTest(t, nil, "partition", "--input", data, "-k", "4", "--algorithm", "random", "--json")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var report map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	var fields []string
	for name := range report {
		fields = append(fields, name)
	}
	slices.Sort(fields)
	want := []string{"algorithm", "bound", "cost", "data_per_machine", "edges", "improvement_percent", "k", "parameters", "random", "samples", "seconds", "traffic"}
	if !slices.Equal(fields, want) {
		t.Errorf("fields %v, want %v", fields, want)
	}
}

func TestPartitionErrors(t *testing.T) {
	data := topicData(t, 80, 4)
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "bad.libsvm")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no input", []string{"-k", "2"}, 2, "--input: name a libsvm file"},
		{"no machines", []string{"--input", data}, 2, "-k 0: want 1 or more machines"},
		{"unknown algorithm", []string{"--input", data, "-k", "2", "--algorithm", "magic"}, 2, `no algorithm "magic": use random`},
		{"unknown key map", []string{"--input", data, "-k", "2", "--algorithm", "random", "--key-map", "x"}, 2, "use identity, spread or file:PATH"},
		{"capacities for another k", []string{"--input", data, "-k", "2", "--capacity", "1,2,3"}, 2, "--capacity has 3 numbers: want one for each of 2 machines"},
		{"negative capacity", []string{"--input", data, "-k", "2", "--algorithm", "random", "--capacity", "1,-2"}, 2, "--capacity [1 -2]: want positive numbers"},
		{"all and out", []string{"--input", data, "-k", "2", "--all", "--out", "x"}, 2, "choose one algorithm"},
		{"a server rank twice", []string{"--input", data, "-k", "2", "--server-ranks", "1,1"}, 2, "--server-ranks [1 1]: want each of 0 to 1 once"},
		{"a server rank beyond k", []string{"--input", data, "-k", "2", "--server-ranks", "0,2"}, 2, "want each of 0 to 1 once"},
		{"output into a file, before anything is read", []string{"--input", write("x"), "-k", "2", "--out", data}, 1, "--out: making the output directory"},
		{"bad bins", []string{"--input", data, "-k", "2", "--algorithm", "random", "--hash-bins", "-1"}, 2, "-1 hash bins"},
		{"no such file", []string{"--input", "/nonexistent", "-k", "2", "--algorithm", "random"}, 1, "/nonexistent"},
		{"directory", []string{"--input", "/tmp", "-k", "2", "--algorithm", "random"}, 1, "is a directory"},
		{"bad line", []string{"--input", write("1 1:1\n1 1:x\n"), "-k", "2", "--algorithm", "random"}, 1, `bad.libsvm, line 2: feature "1:x": value is not a finite decimal number`},
		{"id beyond 2^63", []string{"--input", write("1 9223372036854775809:1\n"), "-k", "1", "--algorithm", "random"}, 1, "bad.libsvm, line 1: feature"},
		{"id twice", []string{"--input", write("1 5:1 5:1\n"), "-k", "1", "--algorithm", "random"}, 1, "bad.libsvm, line 1: duplicate feature id 5"},
		{"empty file", []string{"--input", write(""), "-k", "1", "--algorithm", "random"}, 1, "bad.libsvm: no rows"},
		{"more machines than samples", []string{"--input", data, "-k", "81", "--algorithm", "random"}, 1, "data.libsvm: infeasible: 81 machines for 80 samples"},
		{"theta too small", []string{"--input", data, "-k", "2", "--algorithm", "random", "--theta", "5"}, 1, "infeasible: theta = 5, but 2 machines must hold parameters of weight 40"},
		{"rules that are none", []string{"--input", data, "-k", "2", "--algorithm", "random", "--rules", write("feature 1 bytes=0\n")}, 1, "bad.libsvm, line 1: bytes=0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := runTest(t, nil, append([]string{"partition"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || stdout != "" {
				t.Errorf("exit code %d (want %d), stdout %q, stderr %q (want %q in it)", code, tc.code, stdout, stderr, tc.want)
			}
		})
	}
}

func TestScoreErrors(t *testing.T) {
	data := topicData(t, 80, 4)
	short := filepath.Join(t.TempDir(), "a.txt")
	require.NoError(t, os.WriteFile(short, []byte("0\n1\n"), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no assignment", []string{"--input", data, "-k", "2"}, 2, "name both files"},
		{"no machines", []string{"--input", data, "--assignment", short}, 2, "-k 0"},
		{"no such assignment", []string{"--input", data, "--assignment", "/nonexistent", "-k", "2"}, 1, "/nonexistent"},
		{"short assignment", []string{"--input", data, "--assignment", short, "-k", "2"}, 1, "a.txt ends after line 2: want 120 lines"},
		{"machine beyond k", []string{"--input", data, "--assignment", short, "-k", "1"}, 1, "a.txt, line 2: \"1\": want a machine number from 0 to 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, stderr := runTest(t, nil, append([]string{"score"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d (want %d), stderr %q (want %q in it)", code, tc.code, stderr, tc.want)
			}
		})
	}
}

func TestPartitionAll(t *testing.T) {
	data := topicData(t, 80, 4)
	code, stdout, stderr := runTest(t, nil, "partition", "--input", data, "-k", "4", "--all")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, name := range prerun.AlgorithmNames() {
		if !strings.Contains(stdout, "\n"+name+" ") {
			t.Errorf("no row for %s in\n%s", name, stdout)
		}
	}
	if stderr != "" {
		t.Errorf("stderr is no terminal, but got %q", stderr)
	}
}

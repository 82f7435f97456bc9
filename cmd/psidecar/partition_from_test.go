package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/require"
)

// TestPartitionFromEarlier divides data, adds rows and goes on from the assignment.
func TestPartitionFromEarlier(t *testing.T) {
	data, out := topicData(t, 80, 4), filepath.Join(t.TempDir(), "parts")
	if code, _, stderr := runTest(t, nil, "partition", "--input", data, "-k", "4", "--out", out); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	text := require.Value(os.ReadFile(data))(t)
	more := filepath.Join(t.TempDir(), "more.libsvm")
	rows := strings.Repeat("1 100:1 101:1 777:1\n1 200:1 201:1\n", 2)
	require.NoError(t, os.WriteFile(more, append(text, rows...), 0o600))
	args := []string{"partition", "--input", more, "-k", "4", "--from", filepath.Join(out, "assignment.txt")}
	code, stdout, stderr := runTest(t, nil, append(args, "--json")...)
	var r prerun.Report
	if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if m := r.Moved; m == nil || m.Samples != 80 || m.SamplesMoved > 8 || m.Parameters != 40 {
		t.Errorf("moved %+v, want at most 8 of 80 samples and 40 earlier parameters", m)
	}
	code, stdout, _ = runTest(t, nil, args...)
	for _, want := range []string{"of 80 earlier samples ", "4 samples and 1 parameters are new", "bytes an edge", "phases: "} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, no %q in\n%s", code, want, stdout)
		}
	}
}

func TestPartitionFromErrors(t *testing.T) {
	data := topicData(t, 80, 4)
	earlier := filepath.Join(t.TempDir(), "assignment.txt")
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintln(&lines, i%4)
	}
	require.NoError(t, os.WriteFile(earlier, []byte(lines.String()), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"other data", []string{"-k", "4", "--from", earlier}, 1, "30 of 40 parameters are on machines without a sample that uses them: it belongs to other data"},
		{"fewer machines", []string{"-k", "2", "--from", earlier}, 1, `assignment.txt, line 3: "2": want a machine number from 0 to 1`},
		{"no such file", []string{"-k", "4", "--from", "/nonexistent"}, 1, "opening --from: open /nonexistent"},
		{"another algorithm", []string{"-k", "4", "--from", earlier, "--algorithm", "tsh1"}, 2, "--from is for --algorithm best only"},
		{"no percentage", []string{"-k", "4", "--from", earlier, "--move-at-most", "101"}, 2, "--move-at-most 101: want a percentage"},
	} {
		code, stdout, stderr := runTest(t, nil, append([]string{"partition", "--input", data}, tc.args...)...)
		if code != tc.code || !strings.Contains(stderr, tc.want) || stdout != "" {
			t.Errorf("%s: exit code %d (want %d), stdout %q, stderr %q (want %q in it)", tc.name, code, tc.code, stdout, stderr, tc.want)
		}
	}
}

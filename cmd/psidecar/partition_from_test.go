package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/prerun"
)

// TestPartitionFromEarlier divides data, adds rows and goes on from the assignment.
func TestPartitionFromEarlier(t *testing.T) {
	data, out := topicData(t, 80, 4), filepath.Join(t.TempDir(), "parts")
	if code, _, stderr := runTest(t, nil, "partition", "--input", data, "-k", "4", "--out", out); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	text, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	more := filepath.Join(t.TempDir(), "more.libsvm")
	rows := strings.Repeat("1 100:1 101:1 777:1\n1 200:1 201:1\n", 2)
	if err := os.WriteFile(more, append(text, rows...), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(earlier, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
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
		{"streamed", []string{"-k", "4", "--from", earlier, "--stream"}, 2, "--from is not for --stream"},
	} {
		code, stdout, stderr := runTest(t, nil, append([]string{"partition", "--input", data}, tc.args...)...)
		if code != tc.code || !strings.Contains(stderr, tc.want) || stdout != "" {
			t.Errorf("%s: exit code %d (want %d), stdout %q, stderr %q (want %q in it)", tc.name, code, tc.code, stdout, stderr, tc.want)
		}
	}
}

func TestPartitionResume(t *testing.T) {
	data, state := topicData(t, 80, 4), filepath.Join(t.TempDir(), "state")
	args := []string{"partition", "--input", data, "-k", "4", "--resume", state}
	var most int64
	for round := range 3 {
		code, stdout, stderr := runTest(t, nil, append(args, "--json")...)
		var r prerun.Report
		if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil {
			t.Fatalf("round %d: exit code %d, %v: %s", round, code, err, stderr)
		}
		if round > 0 && r.Traffic.Max > most {
			t.Errorf("round %d: the busiest machine moves %d, before %d", round, r.Traffic.Max, most)
		}
		most = r.Traffic.Max
	}
	whole, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		text []byte
		args []string
		code int
		want string
	}{
		{"another k", whole, []string{"-k", "3"}, 1, "the state belongs to another run: among 4 machines, not 3; remove it to start over"},
		{"another seed", whole, []string{"-k", "4", "--seed", "7"}, 1, "another seed"},
		{"cut short", whole[:len(whole)-9], []string{"-k", "4"}, 1, "state is damaged: its size"},
		{"no state", []byte("1 1:1\n"), []string{"-k", "4"}, 1, "state is not the state of a partition"},
		{"another algorithm", whole, []string{"-k", "4", "--algorithm", "tsh1"}, 2, "--resume is for --algorithm best only"},
	} {
		if err := os.WriteFile(state, tc.text, 0o600); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := runTest(t, nil, append([]string{"partition", "--input", data, "--resume", state}, tc.args...)...)
		if code != tc.code || !strings.Contains(stderr, tc.want) || stdout != "" {
			t.Errorf("%s: exit code %d (want %d), stdout %q, stderr %q (want %q in it)", tc.name, code, tc.code, stdout, stderr, tc.want)
		}
		if kept, err := os.ReadFile(state); err != nil || string(kept) != string(tc.text) {
			t.Errorf("%s: the file was changed, %v", tc.name, err)
		}
	}
}

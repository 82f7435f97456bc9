package main

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

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

// asCommand makes the test program the command, so that its workers are too.
const asCommand = "PSIDECAR_BEAM_TEST_AS_COMMAND"

// TestMain runs main instead of the tests in processes that command or a worker pool started.
func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// command runs the command line in a process of its own and returns what it printed. err is
// about its exit.
func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	self := require.Value(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// TestWorkersInProcesses runs the command with worker processes, one and several: the partition
// is the same, is what its report says, and no worker takes more memory than it may.
func TestWorkersInProcesses(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	require.NoError(t, os.Mkdir(in, 0o700))
	var text bytes.Buffer
	if _, err := dataset.WriteLibsvm(&text, dataset.SyntheticText(dataset.TextOptions{Samples: 5000, Features: 20_000, Seed: 3})); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(text.String(), "\n")
	for i := range 5 {
		part := strings.Join(lines[i*len(lines)/5:(i+1)*len(lines)/5], "")
		require.NoError(t, os.WriteFile(filepath.Join(in, fmt.Sprint("day-", i)), []byte(part), 0o600))
	}
	all := filepath.Join(dir, "all")
	require.NoError(t, os.WriteFile(all, text.Bytes(), 0o600))
	g := require.Value(graphs.FromFile(t.Context(), all, dataset.Options{}))(t)
	var first []byte
	for _, workers := range []int{1, 3} {
		out := filepath.Join(dir, fmt.Sprint("out-", workers))
		stdout, stderr, err := command(t, "--input", in, "-k", "4", "--out", out, "--workers", fmt.Sprint(workers), "--memory", "192MiB", "--json", "-v")
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		peaks := 0
		for line := range strings.Lines(stderr) {
			var worker, peak int
			if n, _ := fmt.Sscanf(line, "worker %d had at most %d MiB of memory", &worker, &peak); n == 2 {
				peaks++
				t.Logf("%d workers: %s", workers, strings.TrimSpace(line))
				if peak > 192 {
					t.Errorf("worker %d may take 192 MiB and took %d", worker, peak)
				}
			}
		}
		if peaks != workers {
			t.Errorf("%d workers said what they took, want %d", peaks, workers)
		}
		assignment := require.Value(os.ReadFile(filepath.Join(out, "assignment.txt")))(t)
		if first == nil {
			first = assignment
		} else if !bytes.Equal(first, assignment) {
			t.Errorf("%d workers find another partition than one", workers)
		}
		a := require.Value(partition.ReadAssignment(bytes.NewReader(assignment), "assignment.txt", g.Samples(), g.Params(), 4))(t)
		require.NoError(t, partition.Check(g, a, partition.Options{K: 4}))
		var r prerun.Report
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		if want := partition.Measure(g, a, 4); !slices.Equal(r.Traffic.PerMachine, want.PerMachine) || r.Traffic.Max != want.Max {
			t.Errorf("report %+v, want %+v", r.Traffic, want)
		}
	}
}

// TestErrors gives mistakes in the arguments and in the data: the message names them, without
// Beam's text around it, and no outcome is written.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(bad, []byte("1 1:1\n0 2:1\n1 x:1\n"), 0o600))
	few := filepath.Join(dir, "few")
	require.NoError(t, os.WriteFile(few, []byte("1 1:1\n"), 0o600))
	out := filepath.Join(dir, "out")
	for name, tc := range map[string]struct {
		want string
		args []string
	}{
		"no input":       {"--input", []string{"-k", "2", "--out", out}},
		"no machines":    {"0 machines", []string{"--input", bad, "--out", out}},
		"no folder":      {"no output directory", []string{"--input", bad, "-k", "2"}},
		"memory":         {"--memory: \"1TB\"", []string{"--input", bad, "-k", "2", "--out", out, "--memory", "1TB"}},
		"little memory":  {"a worker needs", []string{"--input", bad, "-k", "2", "--out", out, "--memory", "1MiB"}},
		"a shard is not": {bad + "-not: no such shard", []string{"--input", bad + "-not", "-k", "2", "--out", out}},
		"rubbish":        {"psidecar-beam: " + bad + ", line 3: feature \"x:1\"", []string{"--input", bad, "-k", "2", "--out", out, "--workers", "1"}},
		"too few":        {"1 samples", []string{"--input", few, "-k", "2", "--out", out, "--workers", "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, stderr, err := command(t, tc.args...); err == nil || !strings.Contains(stderr, tc.want) {
				t.Errorf("%v: %s, want %s", err, stderr, tc.want)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(out, "placement.json")); err == nil {
		t.Error("a placement is there although nothing could be partitioned")
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// hashInput writes a small data set of two classes.
func hashInput(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for r := range 60 {
		fmt.Fprintf(&text, "%d %d:1 %d:2 %d:1\n", r%2, 1+r%2, 10+r%7, 100+r)
	}
	path := filepath.Join(t.TempDir(), "data.libsvm")
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

func TestHashReportsAndWrites(t *testing.T) {
	in := hashInput(t)
	out := filepath.Join(t.TempDir(), "hashed.libsvm")
	code, stdout, stderr := runTest(t, nil, "hash", "--input", in, "--hash-bins", "4", "--hash-bits", "3", "-k", "3", "--out", out, "--json")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var report struct {
		Before, After struct {
			Parameters int
			Edges      int64
			TextBytes  int64 `json:"text_bytes"`
			Partition  struct {
				K       int
				Traffic struct{ Max int64 }
			}
			Accuracy *struct{ Train, Test float64 }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if b := report.Before; b.Parameters != 69 || b.Edges != 180 || b.Partition.K != 3 || b.Accuracy == nil || b.Accuracy.Train < 0.9 {
		t.Errorf("before: %+v", b)
	}
	if a := report.After; a.Parameters > 4<<3 || a.Edges != 240 || a.Accuracy == nil || a.Accuracy.Train < 0.6 {
		t.Errorf("after: %+v", a)
	}
	text := require.Value(os.ReadFile(out))(t)
	if int64(len(text)) != report.After.TextBytes || strings.Count(string(text), "\n") != 60 || !strings.HasPrefix(string(text), "0 ") {
		t.Errorf("%d bytes written, %d reported:\n%.200s", len(text), report.After.TextBytes, text)
	}
	// partition --hash-bins partitions the same set.
	_, whole, _ := runTest(t, nil, "partition", "--input", in, "--hash-bins", "4", "--hash-bits", "3", "-k", "3", "--algorithm", "dppa", "--json")
	_, written, _ := runTest(t, nil, "partition", "--input", out, "-k", "3", "--algorithm", "dppa", "--json")
	var a, b struct{ Traffic struct{ Max, Total int64 } }
	if json.Unmarshal([]byte(whole), &a) != nil || json.Unmarshal([]byte(written), &b) != nil || a != b || a.Traffic.Max != report.After.Partition.Traffic.Max {
		t.Errorf("partition --hash-bins: %s\nof the written set: %s", whole, written)
	}
}

func TestHashAsTable(t *testing.T) {
	code, stdout, stderr := runTest(t, nil, "hash", "--input", hashInput(t), "--hash-bins", "4", "--hash-scheme", "bcws", "-k", "2", "--algorithm", "tsh1")
	if code != 0 || !strings.Contains(stdout, "accuracy, test rows") || !strings.Contains(stdout, "busiest machine, tsh1") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if !strings.Contains(stdout, "had 3 on average before: fewer bins") {
		t.Errorf("4 bins are too many for rows of 3 entries, which is not said: %s", stdout)
	}
	_, stdout, _ = runTest(t, nil, "hash", "--input", hashInput(t), "--hash-bins", "2", "-k", "2", "--algorithm", "tsh1")
	if strings.Contains(stdout, "fewer bins") {
		t.Errorf("2 bins are not too many: %s", stdout)
	}
}

func TestHashRefuses(t *testing.T) {
	negative := filepath.Join(t.TempDir(), "negative.libsvm")
	require.NoError(t, os.WriteFile(negative, []byte("1 1:1\n0 2:-3\n"), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no input", []string{"--hash-bins", "4"}, 2, "--input"},
		{"no bins", []string{"--input", negative}, 2, "--hash-bins"},
		{"bad scheme", []string{"--input", negative, "--hash-bins", "4", "--hash-scheme", "md5"}, 2, "use oph or bcws"},
		{"bad algorithm", []string{"--input", negative, "--hash-bins", "4", "--algorithm", "nope"}, 2, `no algorithm "nope"`},
		{"no machines", []string{"--input", negative, "--hash-bins", "4", "-k", "0"}, 2, "-k 0"},
		{"negative value", []string{"--input", negative, "--hash-bins", "4", "--hash-scheme", "bcws"}, 1, "line 2"},
		{"output in no folder", []string{"--input", negative, "--hash-bins", "4", "--out", "/nonexistent/out"}, 1, "--out: open /nonexistent/out"},
		{"missing file", []string{"--input", "/nonexistent", "--hash-bins", "4"}, 1, "/nonexistent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, stderr := runTest(t, nil, append([]string{"hash"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d (want %d), stderr %q (want %q in it)", code, tc.code, stderr, tc.want)
			}
		})
	}
}

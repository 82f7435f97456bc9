package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/recording"
)

// sparselyUsed writes a recording of two workers that each push keys 0 to 9 in each of 100
// steps, and one key of a thousand others, and returns its path.
func sparselyUsed(t *testing.T) string {
	t.Helper()
	var file bytes.Buffer
	w, err := recording.NewWriter(&file, recording.Header{Host: "host-0"})
	if err != nil {
		t.Fatal(err)
	}
	for step := range uint64(100) {
		for worker, name := range []string{"worker0", "worker1"} {
			keys := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000 + step*10 + uint64(worker)*5}
			if err := w.Add(&recording.Use{
				Job: "10.0.0.1:9000", Worker: name, Server: "server0", UnixNanos: int64(1e9 + step*1e8), Timestamp: int32(step),
				Push: true, Keys: keys, Bytes: uint64(4 * len(keys)),
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.Close(12e9, 0); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "job.psr")
	if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The ten keys that are used in each step are told from those that are used rarely, and each
// has the form that moves least.
func TestAggregateShow(t *testing.T) {
	path := sparselyUsed(t)
	code, out, stderr := runTest(t, nil, "plan", "aggregate", "show", path, "--machines", "2", "--each", "2")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`alpha 0\.0524, 210 keys, 840 bytes of values, steps of 2 workers`, // 11 of 210 keys
		`(?m)^0 to \d+ +\d+ +\d+ bytes +(1|0\.\d+) .* host sums$`,
		`(?m)^\d+ to \d+ +\d+ +\d+ bytes +0\.005\d* .* host sums$`,
		`(?m)^all +210 `,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line is like %s:\n%s", want, out)
		}
	}
	if code, out, _ = runTest(t, nil, "plan", "aggregate", "show", path); code != 0 || !strings.Contains(out, "say --machines") || strings.Contains(out, "all-reduce") {
		t.Errorf("exit code %d without machines:\n%s", code, out)
	}
	if code, _, stderr = runTest(t, nil, "plan", "aggregate", "show", path, "--machines", "-1"); code != 2 || !strings.Contains(stderr, "--machines -1") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

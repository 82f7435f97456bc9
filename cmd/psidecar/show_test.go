package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/agent/recording"
)

// Recordings of one name are told apart by their paths.
func TestOpenRecordings(t *testing.T) {
	var paths []string
	for _, folder := range []string{"a", "b"} {
		dir := filepath.Join(t.TempDir(), folder)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		w, err := recording.NewWriter(&file, recording.Header{Host: folder})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Add(&recording.Use{Job: "10.0.0.1:9000", Worker: "worker0", Server: "server0", UnixNanos: 1e9, Push: true, Keys: []uint64{1}, Bytes: 4}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Close(2e9, 0); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "run.psr")
		if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	state, err := openRecordings(t.Context(), paths)
	if err != nil {
		t.Fatal(err)
	}
	for i, j := range state.Jobs() {
		if want := paths[i] + " 10.0.0.1:9000"; j.Name != want {
			t.Errorf("job %d is called %q, want %q", i, j.Name, want)
		}
	}
	if state, err = openRecordings(t.Context(), paths[:1]); err != nil || state.Jobs()[0].Name != "run 10.0.0.1:9000" {
		t.Errorf("one alone: %v", err)
	}
}

func TestShowSaysWhatItCannotOpen(t *testing.T) {
	for args, want := range map[string]string{"show": "at least 1 arg", "show /nowhere.psr --http 127.0.0.1:0": "/nowhere.psr"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), env{args: strings.Fields(args), stdin: strings.NewReader(""), stdout: &out, stderr: &errs, lookup: os.LookupEnv})
		if code == 0 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %s", args, code, &errs)
		}
	}
}

package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"testing"
)

// TestUnpacked: a set is unpacked once in a run, whole, whoever asks.
func TestUnpacked(t *testing.T) {
	e := &evaluation{datasets: t.TempDir(), scratch: t.TempDir()}
	writeSet(t, e.datasets, "some.libsvm.xz", 50)
	path, err := e.unpacked("some.libsvm.xz")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || bytes.Count(text, []byte("\n")) != 50 {
		t.Fatalf("%v, %d lines, want 50", err, bytes.Count(text, []byte("\n")))
	}
	if err := os.WriteFile(path, []byte("mark"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := e.unpacked("some.libsvm.xz"); err != nil || again != path {
		t.Errorf("then %s, %v", again, err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mark" {
		t.Errorf("it was unpacked again: %v, %.20q", err, text)
	}
	if _, err := e.unpacked("none.xz"); !errors.Is(err, fs.ErrNotExist) || e.absence(err) == "" {
		t.Errorf("an absent set: %v", err)
	}
}

package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// A job's program and data may be named from where the user is.
func TestPathsAreMadeAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("psjob", []byte("#!/bin/sh\n"), 0o755))
	require.NoError(t, os.WriteFile("d.libsvm", nil, 0o600))
	o := Options{Psjob: "./psjob", Data: "d.libsvm"}
	if err := o.FindPrograms(); err != nil || o.Psjob != filepath.Join(dir, "psjob") || o.Data != filepath.Join(dir, "d.libsvm") {
		t.Errorf("%+v, %v", o, err)
	}
	if err := (&Options{Data: "none"}).FindPrograms(); err == nil || !strings.Contains(err.Error(), "--data") {
		t.Errorf("data that is not there: %v", err)
	}
}

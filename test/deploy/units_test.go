package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// TestUnits: systemd takes the units as they are: names, values, and what they
// refer to.
func TestUnits(t *testing.T) {
	require.Program(t, "systemd-analyze")
	root := t.TempDir()
	put := func(name string, text []byte, mode os.FileMode) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, text, mode))
	}
	put("usr/local/bin/psidecar", []byte("#!/bin/sh\n"), 0o755)
	put("bin/kill", []byte("#!/bin/sh\n"), 0o755)
	// systemd's own units, which all others refer to.
	require.NoError(t, os.CopyFS(filepath.Join(root, "usr/lib/systemd/system"), os.DirFS("/usr/lib/systemd/system")))
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil || len(units) != 3 {
		t.Fatalf("the units are %v, %v", units, err)
	}
	args := []string{"verify", "--man=no", "--root=" + root}
	for _, unit := range units {
		text := require.Value(os.ReadFile(unit))(t)
		put("etc/systemd/system/"+filepath.Base(unit), text, 0o644)
		args = append(args, filepath.Join(root, "etc/systemd/system", filepath.Base(unit)))
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) { // warnings too
		if strings.Contains(line, "psidecar") {
			t.Errorf("%s", line)
		}
	}
}

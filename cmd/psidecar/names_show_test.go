package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/test/require"
)

// The names of keys that a planner has are shown, of all jobs or of one.
func TestNamesShow(t *testing.T) {
	show := func(text string, args ...string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "names.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		c, _ := startPlanner(t, plannerFlags{Settings: planner.Settings{HTTP: "127.0.0.1:0", KeyNames: path}})
		code, out, stderr := runTest(t, nil, append([]string{"names", "show", "--agent", c.opts.Front.Listener.Addr().String()}, args...)...)
		if code != 0 {
			t.Fatalf("names show %q: exit code %d, %s", args, code, stderr)
		}
		return out
	}
	const text = "- {name: users, first: 0, last: 1599, keys-per-row: 16}\n- {name: theirs, first: 0, last: 9, job: 'h:1'}\n"
	if out := show(text); !strings.Contains(out, "users   0      1599  16") || !strings.Contains(out, "theirs") {
		t.Errorf("of all jobs: %s", out)
	}
	if out := show(text, "--job", "other:1"); strings.Contains(out, "theirs") {
		t.Errorf("of another job: %s", out)
	}
	if out := show(""); !strings.Contains(out, "no key names") {
		t.Errorf("without names: %q", out)
	}
}

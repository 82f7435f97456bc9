package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// runTest runs one command line with the given environment variables and
// returns the exit code and what was printed.
func runTest(t *testing.T, vars map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), env{
		args:   args,
		stdin:  strings.NewReader(""),
		stdout: &out,
		stderr: &errs,
		lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
	})
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("json: true\nno-such-flag: 1\n"), 0o600))
	removed := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(removed, []byte("spare-servers: true\n"), 0o600))
	for _, tc := range []struct {
		name string
		vars map[string]string
		args []string
		code int
		want string // in stderr
	}{
		{"done", nil, []string{"version"}, 0, ""},
		{"unknown command", nil, []string{"frobnicate"}, 2, `unknown command "frobnicate"`},
		{"unknown flag", nil, []string{"version", "--nope"}, 2, "--nope"},
		{"surplus argument", nil, []string{"version", "x"}, 2, `"x"`},
		{"bad environment", map[string]string{"PSIDECAR_JSON": "maybe"}, []string{"version"}, 2, "PSIDECAR_JSON"},
		{"bad log level", nil, []string{"version", "--log-level", "loud"}, 2, "--log-level"},
		{"no such config", nil, []string{"version", "--config", "/nonexistent"}, 1, "/nonexistent"},
		{"unknown key in config", nil, []string{"version", "--config", file}, 2, "line 2"},
		{"removed flag", nil, []string{"proxy", "--spare-servers"}, 2, "run the job with more servers"},
		{"removed flag with a value", nil, []string{"up", "--spare-limit", "9"}, 2, "--spare-limit"},
		{"variable of a removed flag", map[string]string{"PSIDECAR_SPARE_SERVERS": "true"}, []string{"version"}, 2, "run the job with more servers"},
		{"removed flag in config", nil, []string{"version", "--config", removed}, 2, "run the job with more servers"},
		{"removed flag of the planner", nil, []string{"planner", "--advertise", "192.0.2.1"}, 2, "run one planner"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, stderr := runTest(t, tc.vars, tc.args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d (want %d), stderr %q (want %q in it)", code, tc.code, stderr, tc.want)
			}
		})
	}
}

func TestFlagSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("json: true\n"), 0o600))
	isJSON := func(vars map[string]string, args ...string) bool {
		t.Helper()
		code, out, stderr := runTest(t, vars, append([]string{"version"}, args...)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		return strings.HasPrefix(out, "{")
	}
	if !isJSON(nil, "--config", file) {
		t.Error("the file's value was not taken")
	}
	if !isJSON(map[string]string{"PSIDECAR_JSON": "true"}) {
		t.Error("the environment's value was not taken")
	}
	if isJSON(map[string]string{"PSIDECAR_JSON": "false"}, "--config", file) {
		t.Error("the environment must win over the file")
	}
	if isJSON(nil, "--json=false", "--config", file) {
		t.Error("the command line must win over the file")
	}
}

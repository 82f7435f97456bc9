package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/identity"
)

func TestDebugWithoutServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	args := []string{"debug", "--out", file, "--agent", "http://127.0.0.1:1", "--proxy", "", "--planner-http", ""}
	code, stdout, stderr := runTest(t, nil, args...)
	if code != 0 || strings.TrimSpace(stdout) != file || !strings.Contains(stderr, "agent/jobs.json") {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() < 500 {
		t.Errorf("the bundle: %v, %v", info, err)
	}
	if code, _, stderr := runTest(t, nil, args...); code != 1 || !strings.Contains(stderr, "exists") {
		t.Errorf("a file that is there: exit code %d, %q", code, stderr)
	}
	args[2] = "-" // from where no file can be written
	code, stdout, stderr = runTest(t, nil, args...)
	if code != 0 || !strings.HasPrefix(stdout, "\x1f\x8b") || !strings.Contains(stderr, "agent/jobs.json") {
		t.Errorf("to standard output: exit code %d, %.20q, %q", code, stdout, stderr)
	}
}

func TestCerts(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := runTest(t, nil, "certs", "--out", dir, "--host", "a,198.18.0.1", "--host", "b")
	if code != 0 || !strings.Contains(stdout, "new CA") || strings.Count(stdout, "\n") != 3 {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}
	for _, name := range []string{"ca.crt", "ca.key", "a/tls.crt", "a/tls.key", "a/ca.crt", "b/tls.crt"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for want, args := range map[string][]string{
		"--out":                {"--host", "a"},
		"nothing to issue":     {"--out", dir},
		"--role \"operator\"":  {"--out", dir, "--host", "a", "--role", "operator"},
		"want names":           {"--out", dir, "--host", "../a"},
		"want durations above": {"--out", dir, "--host", "a", "--valid", "0s"},
	} {
		if code, _, stderr := runTest(t, nil, append([]string{"certs"}, args...)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}

// The certificates that are issued have the roles that were asked for.
func TestCertsHaveRoles(t *testing.T) {
	dir := t.TempDir()
	for folder, tc := range map[string]struct {
		args []string
		want string
	}{
		"node1":              {[]string{"--host", "node1,198.18.0.1"}, "agent/node1, agent/198.18.0.1, proxy/node1, proxy/198.18.0.1"},
		"node2":              {[]string{"--host", "node2", "--role", "proxy"}, "proxy/node2"},
		"nodes":              {[]string{"--host", "nodes", "--any-host", "--role", "agent,proxy,planner"}, "agent/*, proxy/*, planner/*"},
		"planner-planner.ns": {[]string{"--planner", "planner.ns,198.18.0.2"}, "planner/planner.ns"},
		"operator-alice":     {[]string{"--operator", "alice"}, "operator/alice"},
	} {
		if code, _, stderr := runTest(t, nil, append([]string{"certs", "--out", dir}, tc.args...)...); code != 0 {
			t.Errorf("%v: %s", tc.args, stderr)
			continue
		}
		in := func(name string) string { return filepath.Join(dir, folder, name) }
		i, err := identity.Load(identity.Files{Cert: in("tls.crt"), Key: in("tls.key"), CA: in("ca.crt")})
		if err != nil {
			t.Error(err)
			continue
		}
		cert, _ := i.Current()
		if got := identity.GrantsOf(cert.Leaf).String(); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.args, got, tc.want)
		}
	}
}

// No process's arguments are in a bundle, whatever an agent tells; keys are as
// they were.
func TestDebugHasNoCommandLines(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"jobs":[{"job":"j:1","nodes":[{"name":"worker0","command":"train --password hunter2"}],"key":18446744073709551615}]}`)
	}))
	defer agent.Close()
	for _, s := range client.BundleSources(cli.VersionOf(version), agent.URL, "", "") {
		if s.Name != "agent/jobs.json" {
			continue
		}
		text, err := s.Read(t.Context())
		if err != nil || strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), "18446744073709551615") || !strings.Contains(string(text), "worker0") {
			t.Errorf("%s, %v", text, err)
		}
		return
	}
	t.Error("jobs are not in a bundle")
}

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/test/require"
)

// TestUnload: unload removes what is pinned, and says so; then there is
// nothing left to remove.
func TestUnload(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	cgroup := require.Value(os.MkdirTemp(require.CgroupV2(t), "psd-unload-"))(t)
	t.Cleanup(func() { os.Remove(cgroup) })
	parent := t.TempDir()
	dir := filepath.Join(parent, "psidecar")
	r := require.Value(redirect.Open(redirect.Options{Dir: dir}))(t)
	t.Cleanup(func() {
		if err := unix.Unmount(parent, unix.MNT_DETACH); err != nil && err != unix.EINVAL { // it goes with what was in it
			t.Error(err)
		}
	})
	require.Value(r.Attach(cgroup, redirect.Policy{}))(t)
	require.NoError(t, r.Close())
	unload := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		e := env{
			args: append([]string{"unload", "--bpf-dir", dir}, args...), stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr,
			lookup: func(string) (string, bool) { return "", false },
		}
		if code := run(t.Context(), e); code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr.String())
		}
		return stdout.String()
	}
	var report unloadReport
	require.NoError(t, json.Unmarshal([]byte(unload("--json")), &report))
	if len(report.Removed) != 14 || !strings.HasSuffix(report.Removed[0], "redirect4") { // 5 links, 9 maps
		t.Errorf("removed %v", report.Removed)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
	if got := unload(); !strings.HasPrefix(got, "psidecar has nothing loaded") {
		t.Errorf("%q", got)
	}
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/test/require"
)

func TestDoctorJudgesRecordedFacts(t *testing.T) {
	const recorded = "../../bpf/testdata/linux-6.18.json"
	code, out, stderr := runTest(t, nil, "doctor", "--facts", recorded, "--json")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var report bpf.ProbeReport
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	if !report.OK || len(report.Findings) < 15 {
		t.Errorf("report %+v", report)
	}

	text := require.Value(os.ReadFile(recorded))(t)
	lacking := filepath.Join(t.TempDir(), "facts.json")
	changed := strings.Replace(string(text), `"cgroup2":"/sys/fs/cgroup/unified"`, `"cgroup2":""`, 1)
	require.NoError(t, os.WriteFile(lacking, []byte(changed), 0o600))
	code, out, stderr = runTest(t, nil, "doctor", "--facts", lacking)
	if code != 1 || !strings.Contains(out, "MISSING cgroup v2") || !strings.Contains(out, "do: boot with") {
		t.Errorf("exit code %d, stdout %s, stderr %s", code, out, stderr)
	}
}

func TestDoctorOfNoFacts(t *testing.T) {
	code, _, stderr := runTest(t, nil, "doctor", "--facts", "/nonexistent")
	if code != 1 || !strings.Contains(stderr, "/nonexistent") {
		t.Errorf("exit code %d, stderr %s", code, stderr)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/test/require"
)

// The test program is psjob itself where this variable is set, so that local
// can start it.
const asProgram = "PSJOB_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func runTest(t *testing.T, vars map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), env{
		args: args, stdout: &out, stderr: &errs,
		lookup:  func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		environ: func() []string { return append(os.Environ(), asProgram+"=1") },
	})
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	taken := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.libsvm")
	require.NoError(t, os.WriteFile(bad, []byte("1 1:1\n1 2:x\n"), 0o600))
	empty := filepath.Join(dir, "empty.libsvm")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	node := func(role string, more ...string) map[string]string {
		vars := map[string]string{"DMLC_ROLE": role, "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "1",
			"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port, "DMLC_NODE_HOST": "127.0.0.1"}
		for i := 0; i < len(more); i += 2 {
			vars[more[i]] = more[i+1]
		}
		return vars
	}
	for name, tc := range map[string]struct {
		vars map[string]string
		args []string
		code int
		want string // in stderr
	}{
		"no role":             {nil, nil, 2, "DMLC_ROLE"},
		"bad role":            {node("king"), nil, 2, `DMLC_ROLE="king"`},
		"bad number":          {node("server", "DMLC_NUM_WORKER", "many"), nil, 2, `DMLC_NUM_WORKER="many"`},
		"unix sockets":        {node("worker", "DMLC_LOCAL", "1"), nil, 2, "DMLC_LOCAL"},
		"other van":           {node("worker", "DMLC_PS_VAN_TYPE", "p3"), nil, 2, "DMLC_PS_VAN_TYPE"},
		"address in use":      {node("scheduler"), nil, 1, "DMLC_PS_ROOT_PORT"},
		"silent scheduler":    {node("worker"), []string{"--model", "count", "--wait", "300ms"}, 1, "gave up after 300ms"},
		"no data":             {node("worker"), nil, 2, "--data"},
		"bad model":           {node("worker"), []string{"--model", "svm"}, 2, "--model"},
		"bad dialect":         {node("server", "PSJOB_DIALECT", "french"), nil, 2, "--dialect french"},
		"dialect without it":  {node("worker"), []string{"--model", "count", "--count-pushpull", "--dialect", "dmlc-2018"}, 2, "--dialect dmlc-2018"},
		"bad flag":            {nil, []string{"--frobnicate"}, 2, "--frobnicate"},
		"bad variable":        {node("worker", "PSJOB_EPOCHS", "x"), nil, 2, "PSJOB_EPOCHS"},
		"argument":            {nil, []string{"frobnicate"}, 2, "frobnicate"},
		"malformed line":      {nil, []string{"local", "--data", bad, "--servers", "1", "--workers", "1"}, 1, "line 2"},
		"empty file":          {nil, []string{"local", "--data", empty, "--servers", "1", "--workers", "1"}, 1, "empty.libsvm"},
		"no such file":        {nil, []string{"local", "--data", "/nonexistent", "--servers", "1", "--workers", "1"}, 1, "/nonexistent"},
		"no workers":          {nil, []string{"local", "--workers", "0", "--model", "count"}, 2, "--workers"},
		"bench, no servers":   {map[string]string{"PSJOB_SERVERS": "0"}, []string{"bench"}, 2, "--servers 0"},
		"generate what":       {nil, []string{"generate", "--kind", "music"}, 2, "--kind"},
		"generate too little": {nil, []string{"generate", "--samples", "-1"}, 2, "samples"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := runTest(t, tc.vars, tc.args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d (want %d), stderr %q (want %q in it)", code, tc.code, stderr, tc.want)
			}
		})
	}
}

// A newcomer's way: make data, train, look at what was accessed.
func TestLocalJobFromDataToAccesses(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			if l, err := net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
				require.Missing(t, "no address on %s: %v", host, err)
			} else {
				l.Close()
			}
			dir := t.TempDir()
			data, report, accesses := filepath.Join(dir, "text.libsvm"), filepath.Join(dir, "report.json"), filepath.Join(dir, "accesses")
			if code, out, errs := runTest(t, nil, "generate", "--samples", "1000", "--features", "2000", "--words", "30", "--out", data); code != 0 || !strings.Contains(out, "1000 rows") {
				t.Fatalf("generate: %d, %s%s", code, out, errs)
			}
			code, out, errs := runTest(t, nil, "local", "--data", data, "--host", host, "--workers", "2", "--top", "32,16", "--report", report, "--access-log", accesses)
			if code != 0 || !strings.Contains(out, "accuracy") {
				t.Fatalf("local: %d, %s%s", code, out, errs)
			}
			text := require.Value(os.ReadFile(filepath.Join(dir, "report.1.json")))(t)
			var r train.WorkerReport
			if err := json.Unmarshal(text, &r); err != nil || r.Accuracy == nil || *r.Accuracy < 0.95 {
				t.Errorf("report %s: %v", text, err)
			}
			text = require.Value(os.ReadFile(accesses + ".1"))(t)
			if lines := strings.Count(string(text), "\n"); lines != 1+r.Keys || lines == 1 {
				t.Errorf("accesses: %d lines for %d keys", lines, r.Keys)
			}
		})
	}
}

func TestBench(t *testing.T) {
	code, out, errs := runTest(t, nil, "bench", "--keys", "10000", "--rounds", "2", "--json")
	if code != 0 || !strings.Contains(out, `"push_seconds":[`) || !strings.Contains(out, `"role":"server"`) {
		t.Errorf("bench: %d, %s%s", code, out, errs)
	}
}

// The environment says how many nodes are measured, and the command line comes before it.
func TestBenchTakesItsNodesFromTheEnvironment(t *testing.T) {
	vars := map[string]string{"PSJOB_SERVERS": "2", "PSJOB_WORKERS": "3"}
	code, out, errs := runTest(t, vars, "bench", "--keys", "1000", "--rounds", "1", "--workers", "2", "--json")
	if servers, workers := strings.Count(out, `"role":"server"`), strings.Count(out, `"role":"worker"`); code != 0 || servers != 2 || workers != 2 {
		t.Errorf("bench: %d, %d servers and %d workers, want 2 and 2: %s%s", code, servers, workers, out, errs)
	}
}

// A report that the environment names is that of workers, with a number each.
func TestReportByTheEnvironment(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report.json")
	t.Setenv("PSJOB_REPORT", report) // the nodes' environment
	code, out, errs := runTest(t, map[string]string{"PSJOB_REPORT": report}, "bench", "--keys", "1000", "--rounds", "1")
	if code != 0 {
		t.Fatalf("bench: %d, %s%s", code, out, errs)
	}
	if _, err := os.Stat(numbered(report, 0)); err != nil {
		t.Errorf("the worker's report: %v", err)
	}
	if _, err := os.Stat(report); err == nil {
		t.Error("a server has written a report without a number")
	}
}

func TestNumbered(t *testing.T) {
	for path, want := range map[string]string{"a.json": "a.3.json", "a.b/c": "a.b/c.3", "x": "x.3"} {
		if got := numbered(path, 3); got != want {
			t.Errorf("numbered(%q) = %q, want %q", path, got, want)
		}
	}
}

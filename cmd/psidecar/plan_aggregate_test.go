package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/require"
)

// sparselyUsed writes a recording of two workers that each push keys 0 to 9 in each of 100
// steps, and one key of a thousand others, and returns its path.
func sparselyUsed(t *testing.T) string {
	t.Helper()
	var file bytes.Buffer
	w := require.Value(recording.NewWriter(&file, recording.Header{Host: "host-0"}))(t)
	for step := range uint64(100) {
		for worker, name := range []string{"worker0", "worker1"} {
			keys := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000 + step*10 + uint64(worker)*5}
			if err := w.Add(&recording.Use{
				Job: "10.0.0.1:9000", Worker: name, Server: "server0", UnixNanos: int64(1e9 + step*1e8), Timestamp: int32(step),
				Push: true, Keys: keys, Bytes: uint64(4 * len(keys)),
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	require.Value(w.Close(12e9, 0))(t)
	path := filepath.Join(t.TempDir(), "job.psr")
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o644))
	return path
}

// The ten keys that are used in each step are told from those that are used rarely, and each
// has the form that moves least.
func TestAggregateShow(t *testing.T) {
	path := sparselyUsed(t)
	code, out, stderr := runTest(t, nil, "plan", "aggregate", "show", path, "--machines", "2", "--each", "2")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`alpha 0\.0524, 210 keys, 840 bytes of values, steps of 2 workers`, // 11 of 210 keys
		`(?m)^0 to \d+ +\d+ +\d+ bytes +(1|0\.\d+) .* host sums +host sums$`,
		`(?m)^\d+ to \d+ +\d+ +\d+ bytes +0\.005\d* .* host sums +servers$`,
		`(?m)^busiest machine: 176 bytes; as proposed 96 bytes$`,
		`(?m)with parameters spread evenly over all:$`,
		`(?m)^all +210 `,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line is like %s:\n%s", want, out)
		}
	}
	if code, out, _ = runTest(t, nil, "plan", "aggregate", "show", path); code != 0 || !strings.Contains(out, "set --machines") || strings.Contains(out, "all-reduce") {
		t.Errorf("exit code %d without machines:\n%s", code, out)
	}
	// Of two machines the slow one is the busiest.
	code, out, stderr = runTest(t, nil, "plan", "aggregate", "show", path, "--machines", "2", "--each", "2", "--link-speed", "100,10")
	if code != 0 || !strings.Contains(out, "busiest machine: 176 bytes, 0.141 ms of its link; as proposed 96 bytes, 0.0768 ms") {
		t.Errorf("exit code %d with links: %s\n%s", code, stderr, out)
	}
	for _, bad := range [][]string{{"--machines", "2", "--link-speed", "1"}, {"--link-speed", "1"}, {"--machines", "2", "--link-speed", "1,0"}, {"--machines", "70000"}} {
		if code, _, stderr = runTest(t, nil, append([]string{"plan", "aggregate", "show", path}, bad...)...); code != 2 || !strings.Contains(stderr, "--link-speed") {
			t.Errorf("%q: exit code %d: %s", bad, code, stderr)
		}
	}
	if code, _, stderr = runTest(t, nil, "plan", "aggregate", "show", path, "--machines", "-1"); code != 2 || !strings.Contains(stderr, "-1 machines") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// Rules on sums are proposed by alpha, set for some keys, and dropped, with --act only.
func TestAggregateApply(t *testing.T) {
	c, address := startPlanner(t, plannerFlags{Settings: planner.Settings{Store: filepath.Join(t.TempDir(), "plans.db")}})
	worth := page.Alpha{Ranges: []page.AlphaRange{{Block: page.NewBlock(0, 99, 100, false)}}}
	worth.Ranges[0].Forms, worth.Ranges[0].Chosen = map[string]float64{"servers": 400, "host_sums": 100}, "host_sums"
	asked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(worth); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(asked.Close)
	const job = "198.18.0.1:9000"
	for _, tc := range []struct {
		args  string
		code  int
		want  string // printed
		rules string // as the planner has them then
	}{
		{"apply --ahead --agent " + asked.URL, 0, `then: [{"form":"host"}]`, ""},
		{"apply --agent " + asked.URL + " --act", 2, "knows no job", ""},
		{"apply --ahead --act --agent " + asked.URL, 0, "set; accepted by 0 proxies", `[{"form":"host"}]`},
		{"apply --keys 0-9", 2, "requires --form", `[{"form":"host"}]`},
		{"apply --form rack", 2, "want host or none", `[{"form":"host"}]`},
		{"apply --keys 9-1 --form none", 2, "--keys", `[{"form":"host"}]`},
		{"apply --keys 0-9 --form none --act --ahead", 0, "accepted by", `[{"keys":"0-9","form":"none"},{"form":"host"}]`},
		{"clear --keys 0-9", 0, "nothing was changed", `[{"keys":"0-9","form":"none"},{"form":"host"}]`},
		{"clear --keys 0-9 --act", 0, "accepted by", `[{"form":"host"}]`},
		{"apply --form none --act", 1, "not in effect", `[{"form":"none"}]`},
		{"clear --act", 0, "accepted by", ""},
	} {
		args := append([]string{"plan", "aggregate"}, strings.Fields(tc.args)...)
		code, stdout, stderr := runTest(t, nil, append(args, "--planner", address, "--job", job)...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", tc.args, code, stdout+stderr, tc.code, tc.want)
		}
		d := require.Value(c.Codecs().Describe(t.Context(), &api.DescribeRulesRequest{Job: job}))(t)
		got := ""
		if len(d.GetRules().GetSums()) > 0 {
			got = d.GetRules().GetSums()[0].GetRules()
		}
		if got != tc.rules {
			t.Errorf("%s: the rules are %s, want %s", tc.args, got, tc.rules)
		}
	}
	worth.Ranges[0].Chosen = "servers"
	if code, _, stderr := runTest(t, nil, "plan", "aggregate", "apply", "--agent", asked.URL, "--planner", address, "--job", job, "--ahead"); code != 1 || !strings.Contains(stderr, "nothing to propose") {
		t.Errorf("where nothing is saved: exit code %d, %q", code, stderr)
	}
	if code, _, stderr := runTest(t, nil, "plan", "aggregate", "clear", "--planner", address); code != 2 || !strings.Contains(stderr, "--job") {
		t.Errorf("without a job: exit code %d, %q", code, stderr)
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/test/require"
)

// Rules are set, changed for some keys and dropped, with --act only, and a new
// planner on the same store has them.
func TestPlanCodecs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(file, []byte("- threshold: 0.95\n  layers: [0-9, 10-19]\n- unchanged: true\n"), 0o600))
	c, address := startPlanner(t, plannerFlags{Settings: planner.Settings{Store: filepath.Join(t.TempDir(), "plans.db")}})
	const job = "198.18.0.1:9000"
	for _, tc := range []struct {
		args  string
		code  int
		want  string // printed
		rules string // as the planner has them then
	}{
		{"show", 0, "no rules", ""},
		{"set --ahead --threshold 0.99", 0, "then: [{\"threshold\":0.99", ""},
		{"set --act", 2, "no codec: want", ""},
		{"set --threshold 1 --act", 2, "--threshold 1: want a sparsity", ""},
		{"set --threshold 0.9 --off --act", 2, "exclude each other", ""},
		{"set --threshold 0.9 --keys 9-1 --ahead --act", 2, "--keys", ""},
		{"set --quantize 8", 2, "knows no job", ""},
		{"set --quantize 8 --act", 2, "knows no job", ""},
		{"set --quantize 8 --ahead --act", 0, "set; accepted by 0 proxies", `"quantize":8`},
		{"set --quantize 8 --act", 1, "not in effect: no proxy follows", `"quantize":8`},
		{"set --quantize 4 --keys 0-99 --ahead --act", 0, "accepted by", `"keys":"0-99"`},
		{"set --off --keys 0-99 --ahead --act", 0, "accepted by", `[{"keys":"0-99"},{`},
		{"clear --keys 0-99", 0, "nothing was changed", `[{"keys":"0-99"},{`},
		{"clear --keys 0-99 --act", 0, "accepted by", `"quantize":8`},
		{"set --off --ahead --act", 0, "accepted by", `[{}]`},
		{"set --file " + file + " --ahead --act", 0, "accepted by", `"layers":["0-9","10-19"]`},
		{"show", 0, "0.95", `0.95`},
		{"drain --steps 0 --act", 2, "--steps 0", `0.95`},
		{"drain --within 1m", 2, "it needs --act", `0.95`},
		{"drain --within 1m --keys 0-9 --act", 2, "does not go with --keys", `0.95`},
		{"drain --steps 20 --keys 0-9 --act", 1, "not in effect", `[{"keys":"0-9","threshold-end":20},{`},
		{"drain --steps 20", 0, "nothing was changed", `"threshold-end":20},{`},
		{"drain --steps 20 --act", 1, "not in effect", `[{"threshold-end":20}]`},
		{"clear --act", 0, "accepted by", ""},
	} {
		args := append([]string{"plan", "codecs"}, strings.Fields(tc.args)...)
		code, stdout, stderr := runTest(t, nil, append(args, "--job", job, "--planner", address)...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.want) {
			t.Errorf("%s: exit code %d, %q %q; want %d, %q", tc.args, code, stdout, stderr, tc.code, tc.want)
		}
		d := require.Value(c.Codecs().Describe(t.Context(), &api.DescribeRulesRequest{Job: job}))(t)
		got := ""
		if len(d.GetRules().GetJobs()) > 0 {
			got = d.GetRules().GetJobs()[0].GetRules()
		}
		if !strings.Contains(got, tc.rules) || tc.rules == "" && got != "" || tc.rules == `"quantize":8` && strings.Contains(got, "keys") {
			t.Errorf("%s: the rules are %s, want %s", tc.args, got, tc.rules)
		}
	}
	for _, verb := range []string{"set --threshold 0.9", "clear"} {
		args := append([]string{"plan", "codecs"}, strings.Fields(verb)...)
		if code, _, stderr := runTest(t, nil, append(args, "--planner", address)...); code != 2 || !strings.Contains(stderr, "--job") {
			t.Errorf("%s without a job: exit code %d, %q", verb, code, stderr)
		}
	}
}

// Rules for a job that nobody knows are refused, with the name that was meant;
// those for one that a proxy carries are set.
func TestPlanCodecsForUnknownJob(t *testing.T) {
	c, address := startPlanner(t, plannerFlags{})
	const job = "198.18.0.1:9000"
	followAs(t, address, &api.CodecReport{Host: "host-0", Version: 1 << 40, Measures: []*api.Measure{{Job: job, Measure: measure.Carry}}})
	require.Eventually(t, "the planner takes the proxy's report", func() bool {
		d, err := c.Codecs().Describe(t.Context(), &api.DescribeRulesRequest{})
		return err == nil && len(d.GetJobs()) == 1
	})
	set := func(job string, more ...string) (int, string) {
		args := append([]string{"plan", "codecs", "set", "--planner", address, "--threshold", "0.9", "--act", "--job", job}, more...)
		code, stdout, stderr := runTest(t, nil, args...)
		return code, stdout + stderr
	}
	if code, text := set("198.18.0.1:900"); code != 2 || !strings.Contains(text, "did you mean "+job+"?") || !strings.Contains(text, "--ahead") {
		t.Errorf("misspelt: exit code %d, %q", code, text)
	}
	d, err := c.Codecs().Describe(t.Context(), &api.DescribeRulesRequest{})
	if err != nil || len(d.GetRules().GetJobs()) != 0 {
		t.Errorf("rules %v, %v; want none", d.GetRules(), err)
	}
	if code, text := set(job); code != 0 || !strings.Contains(text, "accepted by 1 prox") {
		t.Errorf("one that is carried: exit code %d, %q", code, text)
	}
	if code, stdout, stderr := runTest(t, nil, "plan", "codecs", "set", "--planner", address, "--off"); code != 0 || !strings.HasPrefix(stdout, "job "+job) {
		t.Errorf("the only one, not named: exit code %d, %q %q", code, stdout, stderr)
	}
	if code, text := set("198.18.0.7:1", "--ahead"); code != 0 {
		t.Errorf("ahead: exit code %d, %q", code, text)
	}
}

// followAs is a proxy that follows a planner and says so much, until the test ends.
func followAs(t *testing.T, planner string, report *api.CodecReport) {
	t.Helper()
	conn := require.Value(grpc.NewClient(planner, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	stream, err := api.NewCodecsClient(conn).Follow(t.Context())
	if err == nil {
		err = stream.Send(report)
	}
	require.NoError(t, err)
}

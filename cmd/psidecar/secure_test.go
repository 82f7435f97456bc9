package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/report"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/test/certs"
)

// files are those of a certificate, as flags name them.
func files(f certs.Files) link.Files { return link.Files{Cert: f.Cert, Key: f.Key, CA: f.CA} }

// A planner with certificates talks to those alone who have one of its CA, and
// they to no one else.
func TestPlannerByTLS(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	ours, theirs := certs.New(t, "ours"), certs.New(t, "theirs")
	server := ours.Issue(t, t.TempDir(), "planner.example", "", hour)
	_, address := startPlanner(t, plannerFlags{tls: files(server)})
	_, bare := startPlanner(t, plannerFlags{})
	good := ours.Issue(t, t.TempDir(), "host7", "", hour)
	with := func(f certs.Files, more ...string) []string {
		return append([]string{"--planner-ca", f.CA, "--planner-cert", f.Cert, "--planner-key", f.Key}, more...)
	}
	other := theirs.Issue(t, t.TempDir(), "host7", "", hour)
	for name, tc := range map[string]struct {
		address string
		args    []string
		want    string // empty: it works
	}{
		"both sides known":      {address, with(good, "--planner-name", "planner.example"), ""},
		"no TLS":                {address, nil, "planner " + address},
		"another CA's":          {address, with(certs.Files{Cert: other.Cert, Key: other.Key, CA: good.CA}, "--planner-name", "planner.example"), "planner " + address},
		"expired":               {address, with(ours.Issue(t, t.TempDir(), "host7", "", time.Now().Add(-time.Minute)), "--planner-name", "planner.example"), "planner " + address},
		"an unknown planner":    {address, with(other, "--planner-name", "planner.example"), "unknown authority"},
		"a planner elsewhere":   {address, with(good), "127.0.0.1"},
		"a planner without TLS": {bare, with(good), "planner " + bare},
		"a flag short":          {address, []string{"--planner-ca", good.CA}, "go together"},
		"a name alone":          {address, []string{"--planner-name", "x"}, "--planner-name needs"},
		"no such file":          {address, with(certs.Files{Cert: "/none", Key: good.Key, CA: good.CA}), "/none"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := runTest(t, nil, append([]string{"plan", "show", "--planner", tc.address}, tc.args...)...)
			if code == 0 != (tc.want == "") || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, %q, want %q", code, stderr, tc.want)
			}
		})
	}
}

// An agent's reports come by TLS, also after both sides' certificates were
// replaced by those of another CA.
func TestReportsByTLS(t *testing.T) {
	folder, hour := t.TempDir(), time.Now().Add(time.Hour)
	first := certs.New(t, "first").Issue(t, folder, "localhost", "", hour)
	c, address := startPlanner(t, plannerFlags{tls: files(first)})
	reporting := func() {
		t.Helper()
		l := plannerLink{address: address, name: "localhost", files: files(first)}
		creds, err := l.credentials()
		if err != nil {
			t.Fatal(err)
		}
		r := report.New(address, "h1", creds, func() *api.HostReport { return &api.HostReport{} }, func() bool { return false })
		ended := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		go func() { ended <- r.Run(ctx) }()
		for r.State().Reports == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if ctx.Err() != nil {
			t.Errorf("no report came: %+v", r.State())
		}
		cancel()
		<-ended
	}
	reporting()
	second := certs.New(t, "second").Issue(t, t.TempDir(), "localhost", "", hour)
	for from, to := range map[string]string{second.Cert: first.Cert, second.Key: first.Key, second.CA: first.CA} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(to+".new", to); err != nil {
			t.Fatal(err)
		}
	}
	for { // the planner looks again within a second
		leaf, _ := c.identity.Current()
		want, err := link.LoadIdentity(files(first))
		if err != nil {
			t.Fatal(err)
		}
		if now, _ := want.Current(); string(now.Certificate[0]) == string(leaf.Certificate[0]) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	reporting()
	if hosts := c.store.All(); len(hosts) != 1 || hosts[0].GetHost() != "h1" {
		t.Errorf("the planner knows %v", hosts)
	}
}

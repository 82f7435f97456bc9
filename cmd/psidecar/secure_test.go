package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/agent/report"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/planner"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/require"
)

// files are those of a certificate, as flags name them.
func files(f certs.Files) identity.Files { return identity.Files{Cert: f.Cert, Key: f.Key, CA: f.CA} }

// A planner with certificates talks to those alone who have one of its CA with
// a role, and they to no one else but a planner.
func TestPlannerByTLS(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	ours, theirs := certs.NewAuthority(t, "ours"), certs.NewAuthority(t, "theirs")
	issue := func(name string, uris ...string) certs.Files {
		return ours.Issue(t, t.TempDir(), name, hour, uris...)
	}
	c, address := startPlanner(t, plannerFlags{tls: files(issue("planner.example", "psidecar://planner/planner.example")),
		Settings: planner.Settings{Roles: []string{"operator=*.admins.example"}}})
	_, roleless := startPlanner(t, plannerFlags{tls: files(issue("127.0.0.1", "psidecar://agent/x"))})
	_, bare := startPlanner(t, plannerFlags{})
	good := issue("host7", "psidecar://agent/host7")
	with := func(f certs.Files, more ...string) []string {
		return append([]string{"--planner-ca", f.CA, "--planner-cert", f.Cert, "--planner-key", f.Key}, more...)
	}
	known := func(f certs.Files) []string { return with(f, "--planner-name", "planner.example") }
	other := theirs.Issue(t, t.TempDir(), "host7", hour, "psidecar://operator/mallory")
	for name, tc := range map[string]struct {
		verb    string
		address string
		args    []string
		want    string // in the error; empty: it works
	}{
		"both sides known":            {"show", address, known(good), ""},
		"an agent acts":               {"apply", address, known(good), "agent/host7 and not operator"},
		"a proxy acts":                {"rollback", address, known(issue("h", "psidecar://proxy/*")), "not operator"},
		"a planner acts":              {"forget", address, known(issue("h", "psidecar://planner/h")), "not operator"},
		"an operator acts":            {"apply", address, known(issue("alice", "psidecar://operator/alice")), "no job has a plan"},
		"an operator by SPIFFE":       {"apply", address, known(issue("alice", "spiffe://cluster/psidecar/operator/alice")), "no job has a plan"},
		"an operator by name":         {"apply", address, known(issue("bob.admins.example")), "no job has a plan"},
		"no role at all":              {"show", address, known(issue("host7")), "has no role and not agent: issue one that has it (psidecar certs)"},
		"no TLS":                      {"show", address, nil, "planner " + address},
		"another CA's":                {"show", address, known(certs.Files{Cert: other.Cert, Key: other.Key, CA: good.CA}), "planner " + address},
		"expired":                     {"show", address, known(ours.Issue(t, t.TempDir(), "host7", time.Now().Add(-time.Minute), certs.Parts...)), "planner " + address},
		"an unknown planner":          {"show", address, known(other), "unknown authority"},
		"a planner elsewhere":         {"show", address, with(good), "127.0.0.1"},
		"an agent for a planner":      {"show", roleless, with(good), "has agent/x and not planner"},
		"a planner without TLS":       {"show", bare, with(good), "planner " + bare},
		"a planner that is this host": {"show", bare, nil, ""},
		"a flag short":                {"show", address, []string{"--planner-ca", good.CA}, "go together"},
		"a name alone":                {"show", address, []string{"--planner-name", "x"}, "--planner-name needs"},
		"no such file":                {"show", address, with(certs.Files{Cert: "/none", Key: good.Key, CA: good.CA}), "/none"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := runTest(t, nil, append([]string{"plan", tc.verb, "--planner", tc.address}, tc.args...)...)
			if code == 0 != (tc.want == "") || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, %q, want %q", code, stderr, tc.want)
			}
		})
	}
	for reason, least := range map[string]float64{"role": 4, "handshake": 3} {
		if n := gathered(t, c.opts.Policy)["psidecar_planner_refused_callers_total "+reason]; n < least {
			t.Errorf("%v callers are counted as refused for %s, want %v or more", n, reason, least)
		}
	}
}

// gathered are a collector's metrics by name and the values of their labels.
func gathered(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families := require.Value(registry.Gather())(t)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}

// Without certificates a planner is for its host alone, unless somebody wants it
// otherwise.
func TestPlannerForOtherHosts(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"everywhere":           {[]string{"planner", "--listen", ":0"}, 2, "--insecure"},
		"an address":           {[]string{"planner", "--listen", "0.0.0.0:0"}, 2, "can be reached from other hosts"},
		"both":                 {[]string{"planner", "--listen", ":0", "--insecure", "--tls-ca", "a", "--tls-cert", "b"}, 2, "go together"},
		"roles without any CA": {[]string{"planner", "--listen", "127.0.0.1:0", "--tls-role", "agent=x"}, 2, "--tls-role needs"},
		"a role that is none":  {[]string{"planner", "--listen", "127.0.0.1:0", "--tls-role", "boss=x"}, 2, "no role"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := runTest(t, nil, append(tc.args, "--http", "", "--socket", "")...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d, %q, want %d and %q", code, stderr, tc.code, tc.want)
			}
		})
	}
	_, address := startPlanner(t, plannerFlags{Settings: planner.Settings{Listen: "0.0.0.0:0", Insecure: true}})
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	if code, _, stderr := runTest(t, nil, "plan", "show", "--planner", "127.0.0.1:"+port); code != 0 {
		t.Errorf("with --insecure: %s", stderr)
	}
}

// An agent's reports come by TLS, also after both sides' certificates were
// replaced by those of another CA.
func TestReportsByTLS(t *testing.T) {
	folder, hour := t.TempDir(), time.Now().Add(time.Hour)
	first := certs.NewAuthority(t, "first").Issue(t, folder, "localhost", hour, certs.Parts...)
	c, address := startPlanner(t, plannerFlags{tls: files(first)})
	reporting := func() {
		t.Helper()
		l := client.Planner{Address: address, Name: "localhost", Files: files(first)}
		creds := require.Value(l.Credentials())(t)
		r := report.New(address, "h1", creds, func(report.Wanted) *api.HostReport { return &api.HostReport{} }, func() bool { return false })
		ended := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		go func() { ended <- r.Run(ctx) }()
		require.Await(t, "a report comes", func() error {
			if s := r.State(); s.Reports == 0 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		cancel()
		<-ended
	}
	reporting()
	second := certs.NewAuthority(t, "second").Issue(t, t.TempDir(), "localhost", hour, certs.Parts...)
	for from, to := range map[string]string{second.Cert: first.Cert, second.Key: first.Key, second.CA: first.CA} {
		text := require.Value(os.ReadFile(from))(t)
		require.NoError(t, os.WriteFile(to+".new", text, 0o600))
		require.NoError(t, os.Rename(to+".new", to))
	}
	want, _ := require.Value(identity.Load(files(first)))(t).Current()
	require.Eventually(t, "the planner has the new certificate", func() bool {
		leaf, _ := c.opts.Identity.Current()
		return bytes.Equal(want.Certificate[0], leaf.Certificate[0])
	})
	reporting()
	if hosts := c.Reports().All(); len(hosts) != 1 || hosts[0].GetHost() != "h1" {
		t.Errorf("the planner knows %v", hosts)
	}
}

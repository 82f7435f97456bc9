package identity

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

func certificate(t *testing.T, names ...string) *x509.Certificate {
	t.Helper()
	c := &x509.Certificate{}
	for _, name := range names {
		if !strings.Contains(name, "://") {
			c.DNSNames = append(c.DNSNames, name)
			continue
		}
		u := require.Value(url.Parse(name))(t)
		c.URIs = append(c.URIs, u)
	}
	return c
}

func TestGrants(t *testing.T) {
	for name, tc := range map[string]struct {
		names, rules []string
		want         string
	}{
		"none":                       {[]string{"node1"}, nil, "no role"},
		"a name that is like a role": {[]string{"agent", "psidecar-operator"}, nil, "no role"},
		"its own":                    {[]string{"node1", "psidecar://agent/node1"}, nil, "agent/node1"},
		"several":                    {[]string{"psidecar://agent/node1", "psidecar://proxy/node1"}, nil, "agent/node1, proxy/node1"},
		"all hosts":                  {[]string{"psidecar://agent/*"}, nil, "agent/*"},
		"no name":                    {[]string{"psidecar://planner"}, nil, "planner/*"},
		"no such role":               {[]string{"psidecar://root/node1"}, nil, "no role"},
		"more than a name":           {[]string{"psidecar://agent/a/b"}, nil, "no role"},
		"SPIFFE":                     {[]string{"spiffe://cluster/psidecar/operator/alice"}, nil, "operator/alice"},
		"SPIFFE, of something else":  {[]string{"spiffe://cluster/ns/x/sa/psidecar"}, nil, "no role"},
		"another scheme":             {[]string{"https://agent/node1"}, nil, "no role"},
		"by a rule":                  {[]string{"a.agents.example"}, []string{"agent=*.agents.example"}, "agent/*"},
		"by a rule for its host":     {[]string{"node1.agents.example"}, []string{"agent={host}.agents.example"}, "agent/node1"},
		"by a rule for a URI":        {[]string{"spiffe://c/node/n7/proxy"}, []string{"proxy=spiffe://c/node/{host}/proxy"}, "proxy/n7"},
		"no rule fits":               {[]string{"node1"}, []string{"agent=*.agents.example", "agent=x{host}"}, "no role"},
		"a host that is all":         {[]string{"*.agents.example"}, []string{"agent={host}.agents.example"}, "no role"},
		"a host with more of a path": {[]string{"spiffe://c/node/a/b/proxy"}, []string{"proxy=spiffe://c/node/{host}/proxy"}, "no role"},
		"what overlaps is no host":   {[]string{"ab"}, []string{"agent=ab{host}b"}, "no role"},
		"its own, and not by a rule": {[]string{"x", "psidecar://agent/x"}, []string{"operator=x"}, "agent/x"},
	} {
		t.Run(name, func(t *testing.T) {
			var rules []RoleRule
			for _, text := range tc.rules {
				r := require.Value(ParseRoleRule(text))(t)
				rules = append(rules, r)
			}
			if got := GrantsOf(certificate(t, tc.names...), rules...).String(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestForHost(t *testing.T) {
	g := GrantsOf(certificate(t, "psidecar://agent/Node1", "psidecar://proxy/*"))
	for _, tc := range []struct {
		role Role
		host string
		want bool
	}{
		{AgentRole, "node1", true}, {AgentRole, "node2", false}, {AgentRole, "", false}, {AgentRole, AnyHost, false},
		{ProxyRole, "node2", true}, {OperatorRole, "node1", false},
	} {
		if got := g.For(tc.role, tc.host); got != tc.want {
			t.Errorf("%s for %q: %v", tc.role, tc.host, got)
		}
	}
}

// What psidecar certs writes is read again, whatever the host is called.
func TestURIsOfCertsAreReadAgain(t *testing.T) {
	for _, name := range []string{"node1", "node1.example", "10.0.0.1", "fd00::1", "with space", "percent%", AnyHost} {
		if got := GrantsOf(certificate(t, RoleURI(AgentRole, name).String())); len(got) != 1 || got[0] != (Grant{AgentRole, name}) {
			t.Errorf("%q becomes %v", name, got)
		}
	}
}

func TestBadRules(t *testing.T) {
	for _, text := range []string{"", "agent", "agent=", "boss=x", "agent=[", "agent={host}*", "agent={host}{host}"} {
		if _, err := ParseRoleRule(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestMissingSaysWhatToDo(t *testing.T) {
	c := certificate(t, "node1", "psidecar://agent/node1")
	text := MissingRole(c, GrantsOf(c), ProxyRole, "--tls-peer").Error()
	for _, part := range []string{"node1", "agent/node1", "psidecar certs", "psidecar://proxy/NAME", "--tls-peer"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
}

// This file says which roles the holder of a certificate has: agent or proxy of a host,
// planner, operator. A signed certificate proves an identity but grants nothing by itself.
//
// [GrantsOf] returns the [Grants] of a certificate. A certificate names its roles by URIs among
// its subject alternative names: psidecar://ROLE/NAME or
// spiffe://TRUST-DOMAIN/psidecar/ROLE/NAME. Others get roles by a [RoleRule], which is set by
// flag. NAME is the host of an agent or proxy, or the person of an operator; * or nothing means
// any host. The planner and the links between proxies decide by grants; psidecar certs writes
// them.

package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
)

// A Role is what the holder of a certificate may act as.
type Role string

// The roles.
const (
	AgentRole    Role = "agent"    // reports for its host
	ProxyRole    Role = "proxy"    // links with other hosts' proxies, follows plans, records moves for its host
	PlannerRole  Role = "planner"  // takes reports, says where keys belong
	OperatorRole Role = "operator" // applies and rolls back plans, sets rules
)

// Roles lists the roles.
var Roles = []Role{AgentRole, ProxyRole, PlannerRole, OperatorRole}

// AnyHost is the name in a grant for all hosts.
const AnyHost = "*"

// A Grant is a role, for a host or with a name.
type Grant struct {
	Role Role
	Name string // AnyHost: all hosts
}

func (g Grant) String() string { return string(g.Role) + "/" + g.Name }

// Grants are the roles of one certificate.
type Grants []Grant

// Has reports whether the certificate has a role, for any host.
func (g Grants) Has(r Role) bool {
	return slices.ContainsFunc(g, func(o Grant) bool { return o.Role == r })
}

// For reports whether the certificate has a role for that host.
func (g Grants) For(r Role, host string) bool {
	return slices.ContainsFunc(g, func(o Grant) bool { return o.Role == r && (o.Name == AnyHost || strings.EqualFold(o.Name, host)) })
}

// String lists the grants for logs and errors.
func (g Grants) String() string {
	if len(g) == 0 {
		return "no role"
	}
	words := make([]string, len(g))
	for i, o := range g {
		words[i] = o.String()
	}
	return strings.Join(words, ", ")
}

// MissingRole returns an error that says which role a certificate lacks and what to do. flag is
// the flag that gives roles to names.
func MissingRole(cert *x509.Certificate, g Grants, wanted Role, flag string) error {
	return fmt.Errorf("the certificate of %s has %s and not %s: issue one that has it (psidecar certs), with the URI %s, or name it by %s",
		WhoIs(cert), g, wanted, RoleURI(wanted, "NAME"), flag)
}

// maxWho bounds the names of a certificate in logs and errors.
const maxWho = 256

// WhoIs returns the names of a certificate's holder, quoted, for logs and errors.
func WhoIs(cert *x509.Certificate) string {
	names := CertNames(cert)
	if len(names) == 0 {
		names = []string{cert.Subject.CommonName}
	}
	text := fmt.Sprintf("%q", names)
	if len(text) > maxWho {
		text = text[:maxWho] + "..."
	}
	return text
}

// CertNames returns the DNS names and URIs of a certificate.
func CertNames(cert *x509.Certificate) []string {
	names := slices.Clone(cert.DNSNames)
	for _, u := range cert.URIs {
		names = append(names, u.String())
	}
	return names
}

// RoleURI returns the URI by which a certificate names a role.
func RoleURI(r Role, name string) *url.URL {
	return &url.URL{Scheme: "psidecar", Host: string(r), Path: "/" + name}
}

// GrantsOf returns the roles that a certificate names by its own URIs. Rules give roles to
// certificates that name none: one that names roles is limited to them, whatever its names. It
// assumes that the certificate was verified.
func GrantsOf(cert *x509.Certificate, rules ...RoleRule) Grants {
	var g Grants
	for _, u := range cert.URIs {
		if o, ok := granted(u); ok {
			g = append(g, o)
		}
	}
	if len(g) > 0 {
		return g
	}
	for _, name := range CertNames(cert) {
		for _, r := range rules {
			if host, ok := r.match(name); ok {
				g = append(g, Grant{r.Role, host})
			}
		}
	}
	return g
}

// granted parses a role in a URI; false for other URIs.
func granted(u *url.URL) (Grant, bool) {
	var word, name string
	switch u.Scheme {
	case "psidecar":
		word, name = u.Host, strings.TrimPrefix(u.Path, "/")
	case "spiffe":
		rest, ok := strings.CutPrefix(u.Path, "/psidecar/")
		if !ok {
			return Grant{}, false
		}
		word, name, _ = strings.Cut(rest, "/")
	}
	if !slices.Contains(Roles, Role(word)) || strings.Contains(name, "/") {
		return Grant{}, false
	}
	if name == "" {
		name = AnyHost
	}
	return Grant{Role(word), name}, true
}

// A RoleRule gives a role to certificates by their names.
type RoleRule struct {
	Role    Role
	Pattern string // of a DNS name or URI
}

// host is what stands in a pattern for the name of the host.
const host = "{host}"

// ParseRoleRule reads ROLE=PATTERN. The pattern is that of a DNS name or a URI, with
// *, ? and [a-z] as in [path.Match]; or it has {host} in one place, where the
// host's name stands for which the certificate has the role, and nothing else
// that stands for others.
func ParseRoleRule(text string) (RoleRule, error) {
	word, pattern, ok := strings.Cut(text, "=")
	r := RoleRule{Role(word), pattern}
	switch {
	case !ok || pattern == "":
		return r, errors.New("want ROLE=PATTERN, such as agent=spiffe://cluster/ns/psidecar/sa/psidecar-agent")
	case !slices.Contains(Roles, r.Role):
		return r, fmt.Errorf("no role %q: there are %v", word, Roles)
	case strings.Contains(pattern, host) && (strings.Count(pattern, host) > 1 || strings.ContainsAny(strings.Replace(pattern, host, "", 1), `*?[\`)):
		return r, fmt.Errorf("pattern %q: %s stands once, without *, ? and [", pattern, host)
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return r, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return r, nil
}

// match returns for which host a certificate of that name has the role.
func (r RoleRule) match(name string) (string, bool) {
	before, after, bound := strings.Cut(r.Pattern, host)
	if !bound {
		ok, err := path.Match(r.Pattern, name)
		return AnyHost, ok && err == nil
	}
	rest, ok := strings.CutPrefix(name, before)
	if !ok {
		return "", false
	}
	found, ok := strings.CutSuffix(rest, after)
	return found, ok && found != "" && found != AnyHost && !strings.Contains(found, "/")
}

package certificates

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/identity"
)

// A Subject is one that gets a certificate.
type Subject struct {
	Folder string   // in that of the authority
	Names  []string // and addresses
	Grants identity.Grants
}

// HostRoles are the roles of a host's certificate, by default.
var HostRoles = []string{string(identity.AgentRole), string(identity.ProxyRole)}

// Subjects reads the flags of psidecar certs: hosts (with roles, and for any host where
// anyHost says so), planners and operators, each with its names separated by commas.
func Subjects(hosts, planners, operators, roles []string, anyHost bool) ([]Subject, error) {
	var all []Subject
	add := func(flag, prefix, text string, grants func(names []string) (identity.Grants, error)) error {
		names := strings.Split(text, ",")
		if names[0] == "" || filepath.Base(names[0]) != names[0] {
			return cli.Usagef("%s %q: want names, separated by commas", flag, text)
		}
		g, err := grants(names)
		all = append(all, Subject{prefix + names[0], names, g})
		return err
	}
	var failed error
	for _, host := range hosts {
		failed = errors.Join(failed, add("--host", "", host, func(names []string) (g identity.Grants, err error) {
			if anyHost {
				names = []string{identity.AnyHost}
			}
			for _, word := range roles {
				r := identity.Role(word)
				if r != identity.AgentRole && r != identity.ProxyRole && r != identity.PlannerRole {
					return nil, cli.Usagef("--role %q: want agent, proxy or planner; --operator is for people", word)
				}
				for _, name := range names {
					g = append(g, identity.Grant{Role: r, Name: name})
				}
			}
			return g, nil
		}))
	}
	for _, planner := range planners {
		failed = errors.Join(failed, add("--planner", "planner-", planner, func(names []string) (identity.Grants, error) {
			return identity.Grants{{Role: identity.PlannerRole, Name: names[0]}}, nil
		}))
	}
	for _, operator := range operators {
		failed = errors.Join(failed, add("--operator", "operator-", operator, func(names []string) (identity.Grants, error) {
			return identity.Grants{{Role: identity.OperatorRole, Name: names[0]}}, nil
		}))
	}
	return all, failed
}

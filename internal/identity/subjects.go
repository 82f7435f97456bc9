package identity

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// A Subject is one that gets a certificate.
type Subject struct {
	Folder string   // in that of the authority
	Names  []string // and addresses
	Grants Grants
}

// HostRoles are the roles of a host's certificate, by default.
var HostRoles = []string{string(AgentRole), string(ProxyRole)}

// ParseSubjects reads the flags of psidecar certs: hosts (with roles, and for any host where
// anyHost says so), planners and operators, each with its names separated by commas.
func ParseSubjects(hosts, planners, operators, roles []string, anyHost bool) ([]Subject, error) {
	var all []Subject
	add := func(flag, prefix, text string, grants func(names []string) (Grants, error)) error {
		// The first name is also the name of the folder, so it must be a single path element.
		names := strings.Split(text, ",")
		if names[0] == "" || filepath.Base(names[0]) != names[0] || flag != "--operator" && strings.Contains(text, " ") {
			return fmt.Errorf("%s %q: want names, separated by commas", flag, text)
		}
		g, err := grants(names)
		all = append(all, Subject{prefix + names[0], names, g})
		return err
	}
	var failed error
	for _, host := range hosts {
		failed = errors.Join(failed, add("--host", "", host, func(names []string) (g Grants, err error) {
			if anyHost {
				// In the roles only: the certificate still names the host's own addresses,
				// which the clients of its servers check.
				names = []string{AnyHost}
			}
			for _, word := range roles {
				r := Role(word)
				if r != AgentRole && r != ProxyRole && r != PlannerRole {
					return nil, fmt.Errorf("--role %q: want agent, proxy or planner; --operator is for people", word)
				}
				for _, name := range names {
					g = append(g, Grant{Role: r, Name: name})
				}
			}
			return g, nil
		}))
	}
	for _, planner := range planners {
		failed = errors.Join(failed, add("--planner", "planner-", planner, func(names []string) (Grants, error) {
			return Grants{{Role: PlannerRole, Name: names[0]}}, nil
		}))
	}
	for _, operator := range operators {
		failed = errors.Join(failed, add("--operator", "operator-", operator, func(names []string) (Grants, error) {
			return Grants{{Role: OperatorRole, Name: names[0]}}, nil
		}))
	}
	return all, failed
}

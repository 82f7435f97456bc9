package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/identity"
)

// guests has the flags that say who may call a planner: everybody, users of the same host by
// loopback or the unix socket, and holders of certificates.
type guests struct {
	insecure bool          // everybody who reaches the planner may do everything
	users    control.Users // of this host, besides root and the planner's own
	socket   string        // unix socket for psidecar plan; empty: none
	roles    []string      // rules for certificates that name no role, ROLE=PATTERN
}

// addFlags adds the flags that a process of several parts has once. insecure is the usage text
// of --insecure, which differs between commands.
func (g *guests) addFlags(cmd *cobra.Command, insecure string) {
	cmd.Flags().BoolVar(&g.insecure, "insecure", false, insecure)
	addUsers(cmd, &g.users)
}

// addUsers adds --admin-uid. Agent, proxy and planner have it, each for its own sockets.
func addUsers(cmd *cobra.Command, users *control.Users) {
	cmd.Flags().UintSliceVar((*[]uint)(users), "admin-uid", nil, "UIDs that may make changes over Unix sockets and loopback, in addition to root and this process's user")
}

// addNames adds --http-name, the names for which the guard of a page lets requests pass; see
// [page.Guard].
func addNames(cmd *cobra.Command, names *[]string) {
	cmd.Flags().StringSliceVar(names, "http-name", nil, "additional host names accepted in HTTP requests, besides this host's addresses, localhost and its hostname; requests for other names are refused, as are cross-site requests")
}

// policy returns the access policy of a planner with the given identity, which is nil without
// certificates. flag is how the names of the planner's flags begin, for errors. It warns if the
// planner's own certificate lacks the planner's role: callers would refuse it, but by default
// only, so that this is no error.
func (g *guests) policy(flag string, own *identity.Identity) (*control.Policy, error) {
	p := &control.Policy{Open: g.insecure}
	// Rules are read even without certificates, so that their mistakes are reported in any
	// case.
	for _, text := range g.roles {
		r, err := identity.ParseRoleRule(text)
		if err != nil {
			return nil, cli.Usagef("%stls-role %q: %w", flag, text, err)
		}
		p.Rules = append(p.Rules, r)
	}
	if own == nil {
		if len(p.Rules) > 0 {
			return nil, cli.Usagef("%stls-role needs %[1]stls-ca, %[1]stls-cert and %[1]stls-key", flag)
		}
		return p, nil
	}
	// The planner itself works without the role. Whoever calls it decides.
	if cert, _ := own.Current(); !identity.GrantsOf(cert.Leaf, p.Rules...).Has(identity.PlannerRole) {
		slog.Warn("the planner's certificate has no planner role; agents, proxies and psidecar plan accept it only with --planner-name",
			"error", identity.MissingRole(cert.Leaf, identity.GrantsOf(cert.Leaf), identity.PlannerRole, "--planner-name"))
	}
	return p, nil
}

// secured returns a usage error if other hosts can reach a planner at the address at and it has
// no certificates, unless --insecure asks for that. It is called once the listener is open,
// since only then it is known what a name stands for; nothing is accepted before it has
// returned.
func (g *guests) secured(flag string, at net.Addr, own *identity.Identity) error {
	switch tcp, ok := at.(*net.TCPAddr); {
	// In psidecar up --insecure is the proxy's as well, where it does go with the planner's
	// certificates.
	case own != nil && g.insecure && flag == "--":
		return cli.Usagef("--insecure and --tls-cert exclude each other")
	case own != nil || ok && tcp.IP.IsLoopback():
		return nil
	case g.insecure:
		slog.Warn("the planner accepts reports and commands from anyone who can reach it (--insecure)", "address", at.String())
		return nil
	}
	return cli.Usagef("%slisten %s can be reached from other hosts: set certificates (%[1]stls-ca, %[1]stls-cert, %[1]stls-key; psidecar certs issues them), listen on 127.0.0.1, or set --insecure to give everyone who can reach it full access", flag, at)
}

// open opens the unix socket for psidecar plan, and makes its folder. If the default socket
// cannot be opened, as without root, it returns nil without an error: calls by TCP still work.
// A socket that was asked for by name must be there.
func (g *guests) open(flag string, ports *cli.Ports) (*control.Listener, error) {
	if g.socket == "" {
		return nil, nil
	}
	// The folder is open to all users, and the socket checks who calls.
	err := os.MkdirAll(filepath.Dir(g.socket), 0o755)
	if err == nil {
		var l *control.Listener
		if l, err = control.Listen(g.socket); err == nil {
			ports.Own(l)
			return l, nil
		}
	}
	if g.socket != client.PlannerSocket {
		return nil, fmt.Errorf("%ssocket: %w", flag, err)
	}
	slog.Info("cannot open the Unix socket for psidecar plan on this host; psidecar plan needs --planner with an address", "error", err)
	return nil, nil
}

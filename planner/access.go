// This file says, by its settings, who may call a planner: everybody, users of the same host by
// loopback or the unix socket, and holders of certificates.

package planner

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/planner/api"
)

// policy returns the access policy of a planner with the given identity, which is nil without
// certificates. flag is how the names of the planner's flags begin, for errors. It warns if the
// planner's own certificate lacks the planner's role: callers would refuse it, but by default
// only, so that this is no error.
func (f *Settings) policy(flag string, own *identity.Identity) (*control.Policy, error) {
	p := &control.Policy{Open: f.Insecure}
	// Rules are read even without certificates, so that their mistakes are reported in any
	// case.
	for _, text := range f.Roles {
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

// checkReach returns a usage error if other hosts can reach a planner at the address at and it has
// no certificates, unless --insecure asks for that. It is called once the listener is open,
// since only then it is known what a name stands for; nothing is accepted before it has
// returned.
func (f *Settings) checkReach(flag string, at net.Addr, own *identity.Identity) error {
	switch tcp, ok := at.(*net.TCPAddr); {
	// In psidecar up --insecure is the proxy's as well, where it does go with the planner's
	// certificates.
	case own != nil && f.Insecure && flag == "--":
		return cli.Usagef("--insecure and --tls-cert exclude each other")
	case own != nil || ok && tcp.IP.IsLoopback():
		return nil
	case f.Insecure:
		slog.Warn("the planner accepts reports and commands from anyone who can reach it (--insecure)", "address", at.String())
		return nil
	}
	return cli.Usagef("%slisten %s can be reached from other hosts: set certificates (%[1]stls-ca, %[1]stls-cert, %[1]stls-key; psidecar certs issues them), listen on 127.0.0.1, or set --insecure to give everyone who can reach it full access", flag, at)
}

// openSocket opens the unix socket for psidecar plan, and makes its folder. If the default socket
// cannot be opened, as without root, it returns nil without an error: calls by TCP still work.
// A socket that was asked for by name must be there.
func (f *Settings) openSocket(flag string, ports *cli.Ports) (*control.Listener, error) {
	if f.Socket == "" {
		return nil, nil
	}
	// The folder is open to all users, and the socket checks who calls.
	err := os.MkdirAll(filepath.Dir(f.Socket), 0o755)
	if err == nil {
		var l *control.Listener
		if l, err = control.Listen(f.Socket); err == nil {
			ports.Own(l)
			return l, nil
		}
	}
	if f.Socket != api.DefaultSocket {
		return nil, fmt.Errorf("%ssocket: %w", flag, err)
	}
	slog.Info("cannot open the Unix socket for psidecar plan on this host; psidecar plan needs --planner with an address", "error", err)
	return nil, nil
}

package planner

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/live"
)

// Settings determine what a planner does, in the words of the flags of psidecar planner and up:
// each field is a flag's value. [Settings.OpenOptions] checks them and opens what they name.
type Settings struct {
	// Listen is the address for agents, proxies and tools, HTTP that of the page, which is asked
	// for by HTTPNames too.
	Listen, HTTP string
	HTTPNames    []string
	// Store is a file, or kubernetes[:NAMESPACE] for a store that planners share, each with Lease
	// and Advertise.
	Store, Lease, Advertise string
	// Cluster finds the API server, and this process's namespace, for a store in Kubernetes.
	Cluster func() (*rest.Config, string, error)
	// Act carries plans out without being asked.
	Act  bool
	Live live.Options
	// KeyNames is a file with names of keys. They are set at the unix socket NamesSocket; nowhere
	// if it is empty.
	KeyNames, NamesSocket string

	// Insecure gives everybody who reaches the planner full access.
	Insecure bool
	// Users of this host may make changes, besides root and the planner's own.
	Users control.Users
	// Socket is a unix socket for psidecar plan; empty for none.
	Socket string
	// Roles are rules for certificates that name no role, ROLE=PATTERN.
	Roles []string
}

// OpenOptions checks the settings and opens what a planner needs; flag is how the names of its flags
// begin, for errors. o has Version, Identity and, where another part of this process has them,
// Names. Listeners that it has opened are closed with ports, also after an error. The store comes
// last: opening it takes its lock, and all other mistakes are to be reported without waiting for
// that.
func (f *Settings) OpenOptions(ctx context.Context, flag string, o Options, ports *cli.Ports) (Options, error) {
	o.NamesSocket, o.Users, o.Open, o.Act, o.Live, o.StoreName = f.NamesSocket, f.Users, f.Insecure, f.Act, f.Live, flag+"store "+f.Store
	if f.Act && f.Store == "" {
		return o, cli.Usagef("%sact requires %sstore FILE: key owners must survive a restart", flag, flag)
	}
	if err := f.Live.Check(); err != nil {
		return o, cli.Usagef("%sstrategy, %shorizon, %sdecide-every: %w", flag, flag, flag, err)
	}
	var err error
	// In psidecar up agent and planner share what keys are called, and the agent's socket sets
	// it.
	if o.NamesElsewhere = o.Names != nil; !o.NamesElsewhere {
		if o.Names, err = page.OpenNames(f.KeyNames); err != nil {
			return o, cli.Usagef("--names: %w", err)
		}
	}
	// The policy comes before the listener: who may call must be settled when the first caller can
	// come.
	if o.Policy, err = f.policy(flag, o.Identity); err != nil {
		return o, err
	}
	if o.Reports, err = ports.Listen(ctx, flag+"listen", f.Listen); err != nil {
		return o, err
	}
	if err := f.checkReach(flag, o.Reports.Addr(), o.Identity); err != nil {
		return o, err
	}
	// A planner that waits sends callers on over a connection of its own, where only
	// certificates tell them apart.
	if strings.HasPrefix(f.Store, "kubernetes") && f.Advertise != "" && o.Identity == nil && !f.Insecure {
		return o, cli.Usagef("%sadvertise requires certificates or --insecure: without them, clients redirected to the leading planner would appear as this planner's user", flag)
	}
	// After the address has been found to be safe. This socket alone may be missing.
	if o.Control, err = f.openSocket(flag, ports); err != nil {
		return o, err
	}
	if o.Front, err = page.OpenServer(ports.Listener(ctx), flag+"http", f.HTTP, f.HTTPNames...); err != nil {
		return o, err
	}
	if o.Host, err = cli.HostName(""); err != nil {
		return o, err
	}
	// A shared store is opened once this planner has the lead.
	if o.Shared, err = f.shared(flag); err != nil || o.Shared != nil || f.Store == "" {
		return o, err
	}
	if o.Store, err = OpenStore(f.Store); err != nil {
		return o, fmt.Errorf("%sstore: %w", flag, err)
	}
	return o, nil
}

// shared returns how the planner shares its store with others by Kubernetes; nil if the store
// is a file, or there is none. It finds the cluster, but does not call it yet.
func (f *Settings) shared(flag string) (*Shared, error) {
	place, namespace, named := strings.Cut(f.Store, ":")
	if place != "kubernetes" {
		if f.Advertise != "" {
			return nil, cli.Usagef("%sadvertise is for planners that share a store: it needs %sstore kubernetes", flag, flag)
		}
		return nil, nil
	}
	if named && namespace == "" || f.Lease == "" {
		return nil, cli.Usagef("%sstore %q: want kubernetes or kubernetes:NAMESPACE, and a name by %slease", flag, f.Store, flag)
	}
	o := &Shared{Namespace: namespace, Lease: f.Lease}
	var err error
	if f.Advertise != "" {
		if o.Advertise, err = netip.ParseAddr(f.Advertise); err != nil {
			return nil, cli.Usagef("%sadvertise %q: want an IP address: %w", flag, f.Advertise, err)
		}
	}
	// The namespace of this pod, or of the kubeconfig.
	var own string
	if o.Config, own, err = f.Cluster(); err != nil {
		return nil, fmt.Errorf("%sstore %s: %w", flag, f.Store, err)
	}
	if !named {
		o.Namespace = own
	}
	return o, nil
}

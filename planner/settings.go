package planner

import (
	"context"
	"fmt"
	"strings"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/live"
	"github.com/psidecar/psidecar/planner/store"
)

// Settings determine what a planner does, in the words of the flags of psidecar planner and up:
// each field is a flag's value. [Settings.OpenOptions] checks them and opens what they name.
type Settings struct {
	// Listen is the address for agents, proxies and tools, HTTP that of the page, which is asked
	// for by HTTPNames too.
	Listen, HTTP string
	HTTPNames    []string
	// Store is a file; empty for none.
	Store string
	// Act carries plans out without being asked.
	Act  bool
	Live live.Options
	// KeyNames is a file with names of keys.
	KeyNames string

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
	o.Users, o.Open, o.Act, o.Live, o.StoreName = f.Users, f.Insecure, f.Act, f.Live, flag+"store "+f.Store
	if f.Act && f.Store == "" {
		return o, cli.Usagef("%sact requires %sstore FILE: key owners must survive a restart", flag, flag)
	}
	if err := f.Live.Check(); err != nil {
		return o, cli.Usagef("%sstrategy, %shorizon, %sdecide-every: %w", flag, flag, flag, err)
	}
	if place, _, _ := strings.Cut(f.Store, ":"); place == "kubernetes" { // until the next release
		return o, cli.Usagef("%sstore %s: plans are no longer stored in Kubernetes objects. Run one planner with %[1]sstore FILE, on a volume if the pod has one (the chart: planner.volumeClaim); a store that is lost is taught again by the proxies", flag, f.Store)
	}
	var err error
	// In psidecar up agent and planner share what keys are called.
	if o.Names == nil {
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
	if f.Store == "" {
		return o, nil
	}
	if o.Store, err = store.OpenFile(f.Store); err != nil {
		return o, fmt.Errorf("%sstore: %w", flag, err)
	}
	return o, nil
}

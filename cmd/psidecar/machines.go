package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/prerun"
)

// machineFlags are the flags by which psidecar partition asks a planner what its machines are
// like, rather than being told by --link-speed and --capacity.
type machineFlags struct {
	planner string
	hosts   []string
}

// register adds the flags.
func (f *machineFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.planner, "planner-http", "", "URL of a planner's HTTP endpoint, which supplies link speeds and cores of its hosts unless --link-speed and --capacity are given")
	flags.StringSliceVar(&f.hosts, "hosts", nil, "with --planner-http: host names of the k machines (default: all hosts, by name)")
}

// ask returns the relative link speed and share of samples of each of k machines. Both are nil
// without --planner-http, and either is nil if the planner knows it of no host; a host of which
// it is unknown is taken to be like the mean of the others. It logs which host has which
// number, since an assignment knows machines by number only.
func (f *machineFlags) ask(ctx context.Context, k int) (speed, capacity []float64, err error) {
	if f.planner == "" {
		if len(f.hosts) > 0 {
			return nil, nil, cli.Usagef("--hosts needs --planner-http")
		}
		return nil, nil, nil
	}
	var known page.Agent
	if err := client.Get(ctx, f.planner, "/api/v1/agent", nil, &known); err != nil {
		return nil, nil, fmt.Errorf("--planner-http: %w", err)
	}
	hosts := make([]prerun.Host, len(known.Hosts))
	for i, h := range known.Hosts {
		hosts[i].Name = h.Host
		if h.Machine != nil {
			hosts[i].LinkMbit, hosts[i].Cores = h.Machine.LinkMbit, h.Machine.Cores
		}
	}
	machines, err := prerun.Machines(hosts, f.hosts, k)
	if err != nil {
		return nil, nil, fmt.Errorf("--planner-http %s, --hosts: %w", f.planner, err)
	}
	for i, m := range machines {
		slog.Info("machine", "number", i, "host", m.Name, "link_mbit", m.LinkMbit, "cores", m.Cores)
	}
	return prerun.LinkSpeeds(machines), prerun.Capacities(machines), nil
}

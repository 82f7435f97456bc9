package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/placement"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// routingFlags say where keys are, and whether they move.
type routingFlags struct {
	placement, handler, dir string
	act, probe              bool
	planner                 plannerLink
	host                    string
}

func (f *routingFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.placement, "placement", "", "placement.json of psidecar partition: where keys are from a job's first request on; the same on all hosts; implies --mesh-only")
	flags.BoolVar(&f.act, "act", false, "carry out the planner's plans: keys move between servers while the job runs; on all hosts of the job, from its start; implies --mesh-only")
	flags.StringVar(&f.handler, "handler", "", "what the servers do with a push: add (store += value, at once and without counting pushes), assign (store = value, always), none of both; with the last keys are never moved; with add what --threshold holds back is pushed when a worker or proxy ends. Default: not known")
	flags.BoolVar(&f.probe, "allow-probe", false, "find out what the handler does by pushing to, and pulling, a scratch key at the end of the key space")
	flags.StringVar(&f.dir, "state-dir", "/run/psidecar/state", "folder for what a proxy must know after it was killed, while keys are displaced; an agent makes the one beside its --proxy-socket for --proxy-uid")
}

// wanted reports whether requests are to be routed at all.
func (f *routingFlags) wanted() bool { return f.placement != "" || f.act }

func (f *routingFlags) options() (o jobs.Options, err error) {
	o.Dir, o.Probe = f.dir, f.probe
	switch f.handler {
	case "":
	case "add":
		o.Handler = migrate.Adds
	case "assign":
		o.Handler = migrate.Assigns
	case "none":
		o.Handler = migrate.Opaque
	default:
		return o, cli.Usagef("--handler %q: want add, assign or none", f.handler)
	}
	switch {
	case f.act && f.placement != "":
		return o, cli.Usagef("--act and --placement exclude each other: with --act the planner says where keys are")
	case f.act && f.planner.Address == "":
		return o, cli.Usagef("--act needs --planner")
	case f.probe && !f.act:
		return o, cli.Usagef("--allow-probe is of use with --act only")
	}
	if f.act {
		o.Planner = f.planner.Address
		if o.Credentials, err = f.planner.Credentials(); err != nil {
			return o, err
		}
	}
	if o.Host, err = nameOf(f.host); err != nil {
		return o, err
	}
	if f.placement != "" {
		if o.Placement, err = placement.ReadFile(f.placement); err != nil {
			return o, fmt.Errorf("--placement: %w", err)
		}
	}
	return o, nil
}

// routed returns how requests are routed; nil: they are not.
func (f *proxyFlags) routed() (*jobs.Options, error) {
	if !f.routing.wanted() {
		return nil, nil
	}
	o, err := f.routing.options()
	if err != nil {
		return nil, err
	}
	if f.meshPort == 0 {
		return nil, cli.Usagef("--placement and --act need proxies on all hosts, which --mesh-port 0 rules out")
	}
	return &o, nil
}

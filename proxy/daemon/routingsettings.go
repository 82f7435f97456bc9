package daemon

import (
	"fmt"
	"strconv"

	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// RoutingSettings determine where keys are, and whether they move.
type RoutingSettings struct {
	Placement string // path of a placement.json
	Handler   string // what servers do with a push: add, assign, none; empty: unknown
	Dir       string // state folder: what a proxy must know after a kill
	Act       bool   // carry out the planner's plans
	Probe     bool   // find out what servers do
	Split     string // into how many parts large values go: none, auto, or a number
	Spare     bool   // hosts without a server hold parts
	// SpareLimit bounds the bytes of parts that this host holds of one job.
	SpareLimit int64
	Host       string // of this host at the planner; empty: its hostname
	Planner    string // host:port; empty: none
	// Credentials returns the credentials for the planner; it is called only where there is
	// one.
	Credentials func() (credentials.TransportCredentials, error)
}

// Wanted reports whether requests are to be routed at all.
func (f *RoutingSettings) Wanted() bool { return f.Placement != "" || f.Act }

// options checks the settings, reads the placement and gets the planner's credentials.
func (f *RoutingSettings) options() (o jobs.Options, err error) {
	o.Dir, o.Probe = f.Dir, f.Probe
	switch f.Handler {
	case "":
	case "add":
		o.Handler = migrate.Adds
	case "assign":
		o.Handler = migrate.Assigns
	case "none":
		o.Handler = migrate.Opaque
	default:
		return o, cli.Usagef("--handler %q: want add, assign or none", f.Handler)
	}
	switch {
	// Two sources of where keys are would contradict each other from the first move on.
	case f.Act && f.Placement != "":
		return o, cli.Usagef("--act and --placement exclude each other: with --act, the planner determines where keys are")
	case f.Act && f.Planner == "":
		return o, cli.Usagef("--act needs --planner")
	case f.Probe && !f.Act:
		return o, cli.Usagef("--allow-probe requires --act")
	}
	// After the checks above: a number of parts makes sense only with --act.
	if o.Parts, err = f.parts(); err != nil {
		return o, err
	}
	o.Spare, o.SpareLimit = f.Spare, f.SpareLimit
	switch {
	case o.Spare && o.Parts == 0:
		return o, cli.Usagef("--spare-servers needs --split: spare servers hold parts of large values")
	case o.Spare && o.SpareLimit < leastSpareLimit:
		return o, cli.Usagef("--spare-limit %d: want at least %d bytes", o.SpareLimit, leastSpareLimit)
	}
	if f.Act {
		o.Planner = f.Planner
		if o.Credentials, err = f.Credentials(); err != nil {
			return o, err
		}
	}
	// The planner tells hosts apart by name, so an empty one is resolved here.
	if o.Host, err = cli.HostName(f.Host); err != nil {
		return o, err
	}
	// Read now, so that a faulty file ends the start and not a job.
	if f.Placement != "" {
		if o.Placement, err = plan.ReadPlacementFile(f.Placement); err != nil {
			return o, fmt.Errorf("--placement: %w", err)
		}
	}
	return o, nil
}

// leastSpareLimit is the least that a spare server is of any use with.
const leastSpareLimit = 1 << 20

// spareKeepShare is the divisor of --proxy-memory that gives the part for values that spare servers have sent.
const spareKeepShare = 8

// Values of --split that are no number.
const (
	SplitNone = "none"
	SplitAuto = "auto"
)

// parts returns the number of parts that --split asks for, jobs.AutoParts, or 0 for none.
func (f *RoutingSettings) parts() (int, error) {
	n, err := strconv.Atoi(f.Split)
	switch {
	case f.Split == SplitNone || f.Split == "":
		return 0, nil
	case f.Split == SplitAuto:
		n = jobs.AutoParts
	case err != nil || n < 2 || n > plan.MaxParts:
		return 0, cli.Usagef("--split %q: want none, auto, or a number of parts from 2 to %d", f.Split, plan.MaxParts)
	}
	switch {
	case !f.Act:
		return 0, cli.Usagef("--split %s needs --act, on all hosts of the job from its start: the planner's store has which values are in parts", f.Split)
	// A value in parts is moved by pulling it and pushing it to other keys, which only adding
	// servers make exact.
	case f.Handler != "add" && !f.Probe:
		return 0, cli.Usagef("--split %s requires servers that add: set --handler add, or detect it with --allow-probe", f.Split)
	}
	return n, nil
}

// routed returns the options for routing; nil: requests are not routed.
func (f *Settings) routed() (*jobs.Options, error) {
	if !f.Routing.Wanted() {
		return nil, nil
	}
	o, err := f.Routing.options()
	if err != nil {
		return nil, err
	}
	// A request for displaced keys has to reach its servers' hosts through proxies.
	if f.MeshPort == 0 {
		return nil, cli.Usagef("--placement and --act need proxies on all hosts, which --mesh-port 0 rules out")
	}
	o.SpareWait = f.AggregateWait
	if f.Share != "false" {
		o.SpareKeep = f.Memory / spareKeepShare
	}
	return &o, nil
}

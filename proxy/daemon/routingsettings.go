package daemon

import (
	"fmt"
	"log/slog"
	"strconv"

	"google.golang.org/grpc/credentials"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/migrate"
)

// RoutingSettings determine where keys are, and whether they move.
type RoutingSettings struct {
	Placement string // path of a placement.json
	Handler   string // what servers do with a push: add, assign, none; empty: unknown
	Dir       string // state folder: what a proxy must know after a kill
	Act       bool   // carry out the planner's plans; see Settings.routed
	Probe     bool   // find out what servers do
	Split     string // into how many parts large values go: none, auto, or a number
	Host      string // of this host at the planner; empty: its hostname
	Planner   string // host:port; empty: none
	// Credentials returns the credentials for the planner; it is called only where there is
	// one.
	Credentials func() (credentials.TransportCredentials, error)

	placed *plan.Placement // what Placement has; set by check
}

// Wanted reports whether requests are to be routed at all.
func (f *RoutingSettings) Wanted() bool { return f.Placement != "" || f.Act }

// handlers are the values of --handler.
var handlers = map[string]migrate.Handler{"": migrate.Unknown, "add": migrate.Adds, "assign": migrate.Assigns, "none": migrate.Opaque}

// check returns what is wrong with the settings, as far as they stand for themselves.
func (f *RoutingSettings) check() error {
	_, known := handlers[f.Handler]
	switch {
	case !known:
		return cli.Usagef("--handler %q: want add, assign or none", f.Handler)
	// Two sources of where keys are would contradict each other from the first move on.
	case f.Act && f.Placement != "":
		return cli.Usagef("--act and --placement exclude each other: with --act, the planner determines where keys are")
	case f.Probe && !f.Act:
		return cli.Usagef("--allow-probe requires --act")
	}
	// After the checks above: a number of parts makes sense only with --act.
	_, err := f.parts()
	// Read now, so that a faulty file ends the start, before anything is opened, and not a job.
	if err == nil && f.Placement != "" {
		if f.placed, err = plan.ReadPlacementFile(f.Placement); err != nil {
			err = fmt.Errorf("--placement: %w", err)
		}
	}
	return err
}

// options checks the settings, reads the placement and gets the planner's credentials.
func (f *RoutingSettings) options() (o jobs.Options, err error) {
	if err := f.check(); err != nil {
		return o, err
	}
	if f.Act && f.Planner == "" {
		return o, cli.Usagef("--act needs --planner")
	}
	o.Dir, o.Probe, o.Handler, o.Placement = f.Dir, f.Probe, handlers[f.Handler], f.placed
	if o.Parts, err = f.parts(); err != nil {
		return o, err
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
	return o, nil
}

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
//
// Keys that are displaced stay so when --act or --placement is taken away, on one host earlier than
// on others. So a proxy that finds a job with displaced keys in its state directory goes on routing
// by the planner, as with --act, and refuses the job's requests if it has none.
func (f *Settings) routed() (*jobs.Options, error) {
	if !f.Routing.Wanted() {
		if !jobs.Left(f.Routing.Dir) {
			return nil, nil
		}
		slog.Warn("a job of this host has displaced keys: its requests are still routed; to end that, bring its keys home (psidecar restore), and then restart the proxy", "state_dir", f.Routing.Dir)
		if f.Routing.Act = f.Routing.Planner != ""; !f.Routing.Act {
			f.Routing.Probe, f.Routing.Split = false, SplitNone // they need it
		}
	}
	o, err := f.Routing.options()
	if err != nil {
		return nil, err
	}
	// A request for displaced keys has to reach its servers' hosts through proxies.
	if f.MeshPort == 0 {
		return nil, cli.Usagef("--placement and --act need proxies on all hosts, which --mesh-port 0 rules out")
	}
	return &o, nil
}

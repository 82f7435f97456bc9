package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/demo"
)

// newDemoCommand returns psidecar demo. The arguments are checked before root is asked for, so
// that a mistake in them is reported to any user.
func newDemoCommand(e env) *cobra.Command {
	var o demo.Options
	var megabits uint64
	var hold, asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a training job on simulated hosts and show the effect of each psidecar feature",
		Long: `Run a training job (logistic regression, psjob) on simulated hosts, which are
network namespaces on this machine connected by slow links, once per phase:

  baseline   the job alone
  observe    the same, with an agent on every host and a planner
  compact    also a proxy on every host, with the lossless codec between them
  placement  also data and keys partitioned among the hosts before the run
  reroute    a different job, whose hot keys wander: at home, then moved
  threshold  placement, with 99% of pushed values held back until they add up;
             pulls omit unchanged values

Requires root. Everything that it creates is removed at exit.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.Hosts < 2 || o.Hosts > 16:
				return cli.Usagef("--hosts %d: want 2 to 16", o.Hosts)
			case o.Steps < 1:
				return cli.Usagef("--steps %d: want 1 or more", o.Steps)
			case o.Batch < 1:
				return cli.Usagef("--batch %d: want 1 or more", o.Batch)
			case os.Geteuid() != 0:
				return errors.New("the demo creates network namespaces: run it as root")
			}
			o.Rate = megabits * 1e6
			if err := o.FindPrograms(); err != nil {
				return err
			}
			// Progress is drawn in place on a terminal, so it is cleared on every way out.
			out := newDemoOutput(e, asJSON, hold)
			defer out.live.Clear()
			o.Page, o.Say, o.Observed = out.opened, out.live.Say, out.observed
			return demo.Run(cmd.Context(), o, out.report)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Hosts, "hosts", 4, "number of hosts, each with a server and a worker")
	f.Uint64Var(&megabits, "link-mbit", 50, "link speed of every host in Mbit/s; 0: unlimited")
	f.StringVar(&o.Data, "data", "", "training data, libsvm text, plain or compressed (default: generated)")
	f.IntVar(&o.Steps, "steps", 300, "steps per worker in each phase")
	f.IntVar(&o.Batch, "batch", 128, "samples per step of a worker")
	f.StringVar(&o.Psjob, "psjob", "", "path of psjob (default: psjob next to psidecar, or in PATH)")
	f.BoolVar(&hold, "hold", false, "keep serving the page at the end until interrupted")
	f.BoolVar(&asJSON, "json", false, "print JSON, one object per phase")
	return cmd
}

// demoOutput prints what the demo finds: a row or a JSON object for each phase on standard
// output, everything else on standard error. Its methods are called from the demo's goroutine,
// one at a time.
type demoOutput struct {
	env
	asJSON, hold bool
	live         *cli.LiveLine // what happens right now; cleared before anything else is printed
	page         string        // URL
	results      []demo.Result // of all phases so far, for the verdict
}

// newDemoOutput returns the output of a demo. hold makes it wait at the end until the context
// ends.
func newDemoOutput(e env, asJSON, hold bool) *demoOutput {
	return &demoOutput{env: e, asJSON: asJSON, hold: hold, live: cli.NewLiveLine(e.bareErr, e.stderr)}
}

// opened reports where the page is. It is called once, before the first phase.
func (d *demoOutput) opened(url string) {
	d.page = url
	d.live.Clear()
	fmt.Fprintf(d.stderr, "page: %s (shows the job from the second phase on)\n", url)
}

// report prints one phase when it is over. An error ends the demo: nobody reads what is
// printed.
func (d *demoOutput) report(r demo.Result) error {
	d.live.Clear()
	d.results = append(d.results, r)
	if d.asJSON {
		return json.NewEncoder(d.stdout).Encode(r)
	}
	// The header comes with the first row: a demo that fails before prints no empty table.
	if len(d.results) == 1 {
		if _, err := fmt.Fprintln(d.stdout, demo.Columns()); err != nil {
			return err
		}
	}
	if h := r.Home; h != nil {
		fmt.Fprintln(d.stdout, "           another job, whose hot keys wander; first with all keys at home:")
		if _, err := fmt.Fprintln(d.stdout, h.Row("at home")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(d.stdout, r.Row(r.Phase))
	if err == nil && r.ObservedByAgents > 0 {
		_, err = fmt.Fprintf(d.stdout, "           the workers say %d accesses of keys, the agents counted %d\n", r.Accesses, r.ObservedByAgents)
	}
	return err
}

// observed prints the verdict over all phases. With --hold it then blocks until ctx ends, while
// the hosts, their agents and the page are still there.
func (d *demoOutput) observed(ctx context.Context) error {
	d.live.Clear()
	out := d.stdout
	if d.asJSON {
		out = d.stderr // objects alone are JSON
	}
	for _, sentence := range demo.Verdict(d.results, runtime.NumCPU()) {
		fmt.Fprintln(out, sentence)
	}
	if !d.hold {
		return nil
	}
	fmt.Fprintf(d.stderr, "page: %s (press Ctrl-C to stop)\n", d.page)
	<-ctx.Done()
	return nil
}

package main

import (
	"errors"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/internal/demo"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/draw"
)

// newDemoCommand returns psidecar demo. The arguments are checked before root is asked for, so
// that a mistake in them is reported to any user.
func newDemoCommand(e env) *cobra.Command {
	var o demo.Options
	var out demo.Output
	var megabits uint64
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a training job on simulated hosts and show the effect of each psidecar feature",
		Long: `Run a training job (a factorization machine, psjob) on simulated hosts, which are
network namespaces on this machine, once per phase. Their links are as slow as
their shares of this machine's cores.

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
			if err := o.Check(); err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return errors.New("the demo creates network namespaces: run it as root")
			}
			if !cmd.Flags().Changed("link-mbit") {
				megabits = demo.LinkMbit(runtime.NumCPU(), o.Hosts)
			}
			o.Rate = megabits * 1e6
			if err := o.FindPrograms(); err != nil {
				return err
			}
			out.Stdout, out.Stderr, out.Terminal = e.stdout, e.stderr, e.bareErr
			out.Draw = func(h page.Heatmap) error {
				columns, terminal := cli.Columns(e.bareOut)
				colours := draw.NoColours
				if terminal {
					colours = draw.ColoursOf(e.lookup)
				}
				client.CleanHeatmap(&h) // the colours are not to be
				return draw.Terminal(e.bareOut, h, columns, colours)
			}
			return out.Run(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Hosts, "hosts", 4, "number of hosts, each with a server and a worker")
	f.Uint64Var(&megabits, "link-mbit", 0, "link speed of every host in Mbit/s; 0: unlimited (default: 20 for each core that a host has)")
	f.StringVar(&o.Data, "data", "", "training data, libsvm text, plain or compressed (default: generated)")
	f.IntVar(&o.Steps, "steps", 70, "steps per worker in each phase")
	f.IntVar(&o.Batch, "batch", 128, "samples per step of a worker")
	f.StringVar(&o.Psjob, "psjob", "", "path of psjob (default: psjob next to psidecar, or in PATH)")
	f.BoolVar(&out.Hold, "hold", false, "keep serving the page at the end until interrupted")
	f.BoolVar(&out.JSON, "json", false, "print JSON, one object per phase")
	return cmd
}

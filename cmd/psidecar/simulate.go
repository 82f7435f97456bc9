package main

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/simulate"
)

// newSimulateCommand returns psidecar simulate. It runs no job and asks nobody, except for
// --codecs with --proxy.
func newSimulateCommand(e env) *cobra.Command {
	var o simulate.RecordedOptions
	var codecs codecAdvice
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "simulate RECORDING... | simulate --codecs CAPTURE",
		Short: "Simulate move strategies or codecs on recordings of a job",
		Long: `Simulate move strategies on recordings (psidecar record) from one host or from
each host of the job, and report the bytes that the busiest machine would have
sent and received. Bytes of keys and values count, at both ends of a transfer
between machines; a move is charged to both of its machines.

The strategies: home leaves all keys where PS-lite has them; random assigns each
at random; dppa is the dynamic partitioning of Duan and Wu 2023; mgp repartitions
in every epoch; locality is the planner's strategy; reactive moves a key to each
requester. In simulation, locality also moves keys on request where that pays
off; with --planned it only plans, as it does for a running job. All strategies
know only the past.

In addition, the savings of --share-pulls and --aggregate host of psidecar proxy
are shown, with all keys at home: values pulled by several workers of a host are
sent to it once until they are pushed again, and pushes of a host's workers with
the same keys are sent as one if they arrive within --aggregate-wait. Both apply
to values of 4 KiB or more, and need recordings from each host.

With --codecs, codecs are tried instead: on a packet capture of the job, which
unlike a recording contains the values, or live on the traffic of a proxy. The
result is the remaining bytes of pushes and pulls, and the norm of the residual
under a threshold, relative to the norm of one step's pushes.`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			if codecs.wanted {
				return codecs.compareCodecs(cmd.Context(), e, paths, asJSON)
			}
			if len(paths) == 0 {
				// cobra cannot check this, as it depends on --codecs.
				return cli.Usagef("want at least one recording, or --codecs")
			}
			if err := o.Check(); err != nil {
				return cli.UsageError{Err: err}
			}
			// All strategies see the same uses, in the order of their times.
			report, err := simulate.RunRecorded(paths, o)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(report)
			}
			return report.Print(e.stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Job, "job", "", "job, by name or scheduler host:port; may be omitted if there is only one")
	f.StringSliceVar(&o.Strategies, "strategies", simulate.Strategies(), "strategies to simulate: "+strings.Join(simulate.Strategies(), ", "))
	f.IntVar(&o.EpochSteps, "epoch-steps", 10, "number of worker steps after which keys may move")
	f.Float64Var(&o.Horizon, "horizon", 200, "locality: number of steps within which a move must pay off")
	f.BoolVar(&o.Planned, "planned", false, "locality: move keys only at the end of epochs, as the planner does for a running job")
	f.IntVar(&o.Batches, "batches", 4, "dppa and mgp: number of latest batches per machine that are used in an epoch")
	f.IntVar(&o.KeyBytes, "key-bytes", 8, "bytes per key in a message")
	f.Uint64Var(&o.Seed, "seed", 1, "random seed")
	f.DurationVar(&o.Wait, "aggregate-wait", 100*time.Millisecond, "how long a push waits for those of the host's other workers, as with psidecar proxy --aggregate-wait")
	codecs.register(f)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

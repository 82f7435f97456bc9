package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/simulate"
)

// newSimulateCommand returns psidecar simulate, with psidecar simulate fleet below it. It runs
// no job and asks nobody, except for --codecs with --proxy.
func newSimulateCommand(e env) *cobra.Command {
	var o simulate.RecordedOptions
	var codecs codecAdvice
	var plotFile string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "simulate RECORDING... | simulate --codecs CAPTURE",
		Short: "Try strategies for moving keys, or codecs, on recordings of a job",
		Long: `Try strategies on what psidecar record wrote, on one host or on each host of the
job: what would the busiest machine have sent and received, had the strategy
moved keys? Bytes are those of keys and values, both ends of what crosses
between machines count, and a move is paid for by both its machines.

home leaves all keys where PS-lite has them, random puts each anywhere, dppa is
the dynamic partition of Duan and Wu 2023, mgp partitions anew in every epoch,
locality is what the planner uses, and reactive moves a key to whoever asks for
it. In simulation locality does that, too, where it pays; with --planned it only
plans, as it does for a job that runs. All know the past only.

Beside that it says what --share-pulls and --aggregate host of psidecar proxy
would save with all keys at home: values that a host's worker pulls go there once
until they are pushed again, and pushes of a host's workers with the same keys go
as one, as far as they come within --aggregate-wait. Both are of values of 4 KiB
or more, and of recordings made on each host.

With --codecs it is codecs that are tried instead, on a capture of the job's
packets, which unlike a recording has the values, or live on what passes a
proxy: bytes that each would leave of pushes and pulls, and the norm of what
would wait under a threshold, in norms of what one step pushes.`,
		Args: cobra.ArbitraryArgs, // recordings, although there is a command below
		RunE: func(cmd *cobra.Command, paths []string) error {
			if codecs.wanted {
				return codecs.compareCodecs(cmd.Context(), e, paths, plotFile, asJSON)
			}
			if len(paths) == 0 {
				return cli.Usagef("want one recording or more, or --codecs")
			}
			if err := o.Check(); err != nil {
				return cli.UsageError{Err: err}
			}
			// All strategies see the same uses, in the order of their times.
			report, err := simulate.RunRecorded(paths, o)
			if err != nil {
				return err
			}
			if plotFile != "" {
				title := fmt.Sprintf("%s, %d machines", report.Job, report.Machines)
				if err := writePlot(plotFile, func(w io.Writer) error { return simulate.Plot(w, title, report.Results) }); err != nil {
					return err
				}
			}
			if asJSON {
				return json.NewEncoder(e.stdout).Encode(report)
			}
			return report.Print(e.stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Job, "job", "", "the job, by its scheduler's host:port; may be left out where there is one")
	f.StringSliceVar(&o.Strategies, "strategies", simulate.Strategies(), "what to try: "+strings.Join(simulate.Strategies(), ", "))
	f.IntVar(&o.EpochSteps, "epoch-steps", 10, "after how many steps of the workers keys may move")
	f.Float64Var(&o.Horizon, "horizon", 200, "locality: steps in which a move must pay back")
	f.BoolVar(&o.Planned, "planned", false, "locality: move keys at the ends of epochs only, as the planner does for a job that runs")
	f.IntVar(&o.Batches, "batches", 4, "dppa and mgp: how many of its newest batches a machine shows in an epoch")
	f.IntVar(&o.KeyBytes, "key-bytes", 8, "what a key takes in a message")
	f.Uint64Var(&o.Seed, "seed", 1, "of random choices")
	f.DurationVar(&o.Wait, "aggregate-wait", 100*time.Millisecond, "how long a push may wait for those of its host's other workers, as of psidecar proxy --aggregate host")
	codecs.register(f)
	f.StringVar(&plotFile, "plot", "", "PNG file for a plot of the epochs, or of the codecs")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newSimulateFleetCommand(e))
	return cmd
}

// writePlot writes a drawing to the file of --plot, which it overwrites. A failure may leave a
// part of it there.
func writePlot(path string, draw func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	err = draw(f)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("--plot %s: %w", path, err)
	}
	return nil
}

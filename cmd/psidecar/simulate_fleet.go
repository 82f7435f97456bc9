package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/client/loadtest"
	"github.com/psidecar/psidecar/internal/cli"
)

// newSimulateFleetCommand returns psidecar simulate fleet. It starts processes of this program,
// and removes what they write when it ends.
func newSimulateFleetCommand(e env) *cobra.Command {
	o := loadtest.DefaultOptions
	var keys float64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Play the hosts of large jobs to a planner, and measure it",
		Long: `Start a planner and play it the hosts of large jobs, on this machine: agents that
report and proxies that follow plans and record moves, over connections of their
own, with made traffic. Each host has a server and a worker of every job. A worker
uses keys that all use (--zipf, --shared) and keys that it alone uses most (--hot),
which in a shift it exchanges with other hosts'.

Measured are the planner's processor time and memory, the bytes that it takes in
and gives out, how long after a shift plans for the keys are at every proxy, and
how long after kill -9 of the planner all hosts are back, with the same plans. No
bytes of a job flow, and moves are said to be done at once. The hosts take
processor time, too: about as much as the planner.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keys < 1 || keys > 1<<62 {
				return cli.Usagef("--keys %v: want 1 to 4e18", keys)
			}
			o.Keys = uint64(keys)
			if err := o.Check(); err != nil {
				return cli.Usagef("%w", err)
			}
			program, err := loadtest.Executable()
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "psidecar-fleet-")
			if err != nil {
				return fmt.Errorf("a folder for the planner's store: %w", err)
			}
			// The planner in it is killed and started again during the run, with the same
			// store.
			defer os.RemoveAll(dir)
			o.Say = func(what string) { fmt.Fprintln(e.stderr, what) }
			result, failed := loadtest.Run(cmd.Context(), program, dir, o)
			// Where it failed half way there are results to print, with the error among them.
			if result == nil {
				return failed
			}
			if failed != nil {
				result.Error = failed.Error()
			}
			print := result.Print
			if asJSON {
				print = func(w io.Writer) error { return json.NewEncoder(w).Encode(result) }
			}
			return errors.Join(print(e.stdout), failed)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Hosts, "hosts", o.Hosts, "how many hosts, each with a server and a worker of every job")
	f.IntVar(&o.Jobs, "jobs", o.Jobs, "how many jobs share the hosts")
	f.Float64Var(&keys, "keys", float64(o.Keys), "how many keys each job has: 1e9, say")
	f.BoolVar(&o.Dense, "dense", o.Dense, "neighbouring keys are used together; else keys are hashed to 64 bits")
	f.Float64Var(&o.Zipf, "zipf", o.Zipf, "exponent by which all workers draw from all keys")
	f.IntVar(&o.Hot, "hot", o.Hot, "how many keys each worker uses most, alone")
	f.IntVar(&o.Shared, "shared", o.Shared, "how many keys all workers use in every step")
	f.IntVar(&o.Window, "window", o.Window, "how many keys a worker uses in 6.4 s")
	f.DurationVar(&o.Every, "every", o.Every, "how often agents report")
	f.DurationVar(&o.Warm, "warm", o.Warm, "how long to run before the load is measured")
	f.DurationVar(&o.During, "for", o.During, "how long to measure the load")
	f.IntVar(&o.Shifts, "shifts", o.Shifts, "how many times workers turn to each other's keys")
	f.IntVar(&o.ShiftPart, "shift-part", o.ShiftPart, "one in so many hosts do")
	f.DurationVar(&o.Away, "away", o.Away, "for how long the planner is gone after kill -9; 0: it is not killed")
	f.DurationVar(&o.Patience, "patience", o.Patience, "how long to wait for plans and hosts")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of the traffic")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

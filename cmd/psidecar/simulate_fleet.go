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
		Short: "Simulate the hosts of large jobs against a planner and measure it",
		Long: `Start a planner and simulate the hosts of large jobs on this machine: agents that
report, and proxies that follow plans and record moves, each over its own
connection, with synthetic traffic. Each host has a server and a worker of every
job. A worker uses keys that all workers use (--zipf, --shared) and its own hot
keys (--hot), which it exchanges with other hosts in a shift.

Measured are the planner's CPU time and memory, its inbound and outbound bytes,
the time from a shift until plans for the keys have reached every proxy, and the
time from kill -9 of the planner until all hosts have reconnected, with the same
plans. No job traffic flows, and moves are reported as done at once. The simulated
hosts take about as much CPU time as the planner.`,
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
				return fmt.Errorf("creating a directory for the planner's store: %w", err)
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
	f.IntVar(&o.Hosts, "hosts", o.Hosts, "number of hosts, each with a server and a worker of every job")
	f.IntVar(&o.Jobs, "jobs", o.Jobs, "number of jobs that share the hosts")
	f.Float64Var(&keys, "keys", float64(o.Keys), "number of keys per job, such as 1e9")
	f.BoolVar(&o.Dense, "dense", o.Dense, "use adjacent keys together instead of keys hashed to 64 bits")
	f.Float64Var(&o.Zipf, "zipf", o.Zipf, "Zipf exponent of the keys that all workers draw from")
	f.IntVar(&o.Hot, "hot", o.Hot, "number of hot keys per worker")
	f.IntVar(&o.Shared, "shared", o.Shared, "number of keys that all workers use in every step")
	f.IntVar(&o.Window, "window", o.Window, "number of keys that a worker uses in 6.4 s")
	f.DurationVar(&o.Every, "every", o.Every, "report interval of the agents")
	f.DurationVar(&o.Warm, "warm", o.Warm, "warm-up time before the measurement")
	f.DurationVar(&o.During, "for", o.During, "duration of the measurement")
	f.IntVar(&o.Shifts, "shifts", o.Shifts, "number of shifts, in which workers exchange their hot keys")
	f.IntVar(&o.ShiftPart, "shift-part", o.ShiftPart, "one in this many hosts takes part in a shift")
	f.DurationVar(&o.Away, "away", o.Away, "downtime of the planner after kill -9; 0: it is not killed")
	f.DurationVar(&o.Patience, "patience", o.Patience, "timeout for plans and hosts")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "random seed of the traffic")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

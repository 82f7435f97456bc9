// Command fleet simulates the hosts of large jobs against a planner's process and measures it:
// agents that report, and proxies that follow plans and rules and record moves, each over a
// connection of its own, with synthetic traffic. Each host has a server and a worker of every
// job. A worker uses keys that all workers use (--zipf, --shared) and hot keys of its own
// (--hot), which it exchanges with other hosts in a shift.
//
// Measured are the planner's CPU time and memory, its inbound and outbound bytes, the time from
// a shift until plans for the keys have reached every proxy, and the time from kill -9 of the
// planner until all hosts have reconnected, with the same plans. No job traffic flows, and moves
// are reported as done at once. The simulated hosts take about as much CPU time as the planner.
//
//	go run ./test/fleet                                # 100 hosts, two jobs of 1e9 keys, two minutes
//	go run ./test/fleet --hosts 1000 --dense --json    # adjacent keys, which move as ranges
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// run is main with its surroundings given.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := defaults
	o.Say = func(what string) { fmt.Fprintln(stderr, what) }
	f := flag.NewFlagSet("fleet", flag.ContinueOnError)
	f.SetOutput(stderr)
	psidecar := f.String("psidecar", "", "psidecar's program; empty: build it")
	asJSON := f.Bool("json", false, "print JSON")
	keys := f.Float64("keys", float64(o.Keys), "number of keys per job, such as 1e9")
	f.IntVar(&o.Hosts, "hosts", o.Hosts, "number of hosts, each with a server and a worker of every job")
	f.IntVar(&o.Jobs, "jobs", o.Jobs, "number of jobs that share the hosts")
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
	if err := f.Parse(args); err != nil {
		return err
	}
	if *keys < 1 || *keys > 1<<62 {
		return fmt.Errorf("--keys %v: want 1 to 4e18", *keys)
	}
	o.Keys = uint64(*keys)
	dir, err := os.MkdirTemp("", "psidecar-fleet-")
	if err != nil {
		return fmt.Errorf("creating a directory for the planner's store: %w", err)
	}
	defer os.RemoveAll(dir)
	if *psidecar == "" {
		*psidecar = filepath.Join(dir, "psidecar")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", *psidecar, "github.com/psidecar/psidecar/cmd/psidecar").CombinedOutput(); err != nil {
			return fmt.Errorf("building psidecar: %w\n%s", err, out)
		}
	}
	result, failed := play(ctx, []string{*psidecar, "planner"}, dir, o)
	// A run that failed half way has results to print, with the error among them.
	if result == nil {
		return failed
	}
	if failed != nil {
		result.Error = failed.Error()
	}
	if *asJSON {
		return errors.Join(json.NewEncoder(stdout).Encode(result), failed)
	}
	return errors.Join(result.Print(stdout), failed)
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/prerun"
)

// partitionFlags are the flags of psidecar partition.
type partitionFlags struct {
	input, out, rules     string
	algorithm, keyMap     string
	hashScheme            string
	k, hashBins, hashBits int
	seed                  uint64        // of all random choices: the same seed gives the same result
	theta                 int64         // bound on what a machine uses as a worker; 0: none
	capacity, speed       []float64     // of each machine, relative; empty: alike
	servers               []int         // PS-lite rank of each machine's server; empty: its number
	budget                time.Duration // for going on after the first result
	from                  string        // an earlier assignment
	moveAtMost            float64       // percent
	all, json             bool
}

// newPartitionCommand returns psidecar partition.
func newPartitionCommand(e env) *cobra.Command {
	var f partitionFlags
	cmd := &cobra.Command{
		Use:   "partition --input FILE -k MACHINES",
		Short: "Divide training data and parameters among machines before a run",
		Long: `Read libsvm or libffm text (plain, .gz, .bz2, .xz, .zst) and divide its samples
and their parameters among k machines, each with a worker and a server, so that
the busiest machine moves the fewest parameters per step.

--out writes a data shard per machine, assignment.txt for psidecar score, and
placement.json for proxy and up.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), e)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.input, "input", "", "input data, a libsvm or libffm file")
	flags.IntVarP(&f.k, "machines", "k", 0, "number of machines")
	flags.StringVar(&f.algorithm, "algorithm", "best", strings.Join(prerun.Algorithms(), ", "))
	flags.BoolVar(&f.all, "all", false, "run all algorithms and compare them")
	flags.Uint64Var(&f.seed, "seed", 1, "random seed")
	flags.DurationVar(&f.budget, "time-budget", 0, "time limit for best, for example 30s")
	flags.StringVar(&f.from, "from", "", "with best: assignment.txt of an earlier run on the same data before samples were appended; most old samples keep their machine")
	flags.Float64Var(&f.moveAtMost, "move-at-most", 10, "with --from: maximum percentage of old samples that may move")
	flags.Int64Var(&f.theta, "theta", 0, "maximum number of parameters (bytes, with --rules) used by a machine as a worker; 0: unlimited")
	flags.Float64SliceVar(&f.capacity, "capacity", nil, "relative share of samples per machine: k numbers")
	flags.Float64SliceVar(&f.speed, "link-speed", nil, "relative link speed per machine: k numbers")
	flags.StringVar(&f.rules, "rules", "", "file with weights, with lines of the form: feature ID bytes=N, or sample NUMBER weight=N")
	flags.IntVar(&f.hashBins, "hash-bins", 0, "hash every row to this many features first; 0: disabled")
	flags.IntVar(&f.hashBits, "hash-bits", prerun.DefaultHashBits, "bits per hashed feature")
	flags.StringVar(&f.hashScheme, "hash-scheme", "oph", "hashing scheme: oph for sets, bcws for weights")
	flags.StringVar(&f.keyMap, "key-map", "identity", "mapping of feature IDs to PS-lite keys: identity, spread or file:PATH")
	flags.IntSliceVar(&f.servers, "server-ranks", nil, "PS-lite rank of each machine's server: k numbers (default 0,1,...)")
	flags.StringVar(&f.out, "out", "", "output directory for shards, assignment.txt and placement.json")
	flags.BoolVar(&f.json, "json", false, "print JSON, one object per algorithm")
	return cmd
}

// check finds faults of the flags before any file is read, since reading may take minutes.
// Faults in files are found by the task.
func (f *partitionFlags) check() error {
	if f.input == "" {
		return cli.Usagef("--input: name a libsvm file")
	}
	if f.k < 1 {
		return cli.Usagef("-k %d: want 1 or more machines", f.k)
	}
	if f.theta < 0 {
		return cli.Usagef("--theta %d: want a positive number, or 0 for no bound", f.theta)
	}
	if f.budget < 0 {
		return cli.Usagef("--time-budget %v: want a positive time", f.budget)
	}
	// Lists have a number for each machine, or are left out.
	for name, list := range map[string]int{"capacity": len(f.capacity), "link-speed": len(f.speed), "server-ranks": len(f.servers)} {
		if list != 0 && list != f.k {
			return cli.Usagef("--%s has %d numbers: want one for each of %d machines", name, list, f.k)
		}
	}
	// Written so that NaN fails.
	for name, list := range map[string][]float64{"capacity": f.capacity, "link-speed": f.speed} {
		if slices.ContainsFunc(list, func(n float64) bool { return !(n > 0) }) {
			return cli.Usagef("--%s %v: want positive numbers", name, list)
		}
	}
	// A permutation of 0 to k-1, as PS-lite assigns ranks.
	if ranks := slices.Sorted(slices.Values(f.servers)); slices.ContainsFunc(ranks, func(r int) bool { return r < 0 || r >= f.k }) || len(slices.Compact(ranks)) != len(f.servers) {
		return cli.Usagef("--server-ranks %v: want each of 0 to %d once", f.servers, f.k-1)
	}
	if err := f.checkFrom(); err != nil {
		return err
	}
	// One folder can hold the output of one algorithm only.
	if f.all && f.out != "" {
		return cli.Usagef("--all and --out: choose one algorithm to write the output of")
	}
	return nil
}

// checkFrom is the part of check for what goes on from earlier work.
func (f *partitionFlags) checkFrom() error {
	switch {
	case f.from != "" && (f.all || f.algorithm != "best"):
		return cli.Usagef("--from is for --algorithm best only")
	// Written so that NaN fails.
	case !(f.moveAtMost >= 0 && f.moveAtMost <= 100):
		return cli.Usagef("--move-at-most %g: want a percentage, 0 to 100", f.moveAtMost)
	}
	return nil
}

// run does the work and prints the reports when all of it is done; it can be interrupted
// through ctx.
func (f *partitionFlags) run(ctx context.Context, e env) error {
	t, err := f.task(e)
	if err != nil {
		return err
	}
	// With --all there is a report for each algorithm, else one.
	reports, err := t.Run(ctx)
	if err != nil {
		return err
	}
	// Tables compare all algorithms side by side, so they wait for the last one. JSON has an
	// object for each.
	if !f.json {
		return f.tables(e, reports)
	}
	for _, r := range reports {
		if err := json.NewEncoder(e.stdout).Encode(r); err != nil {
			return fmt.Errorf("printing the report: %w", err)
		}
	}
	return nil
}

// task returns the task that the flags describe. It reads no data yet.
func (f *partitionFlags) task(e env) (*prerun.Task, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	t := &prerun.Task{
		K: f.k, Seed: f.seed, Theta: f.theta, Capacity: f.capacity, Speed: f.speed, Budget: f.budget,
		Rules: f.rules, From: f.from, MoveAtMost: f.moveAtMost / 100,
		Progress: func(what string) func(float64) { return cli.NewProgress(e.bareErr, what) },
	}
	var err error
	if t.Algorithms, err = prerun.FindAlgorithms(f.algorithm, f.all); err != nil {
		return nil, cli.Usagef("--algorithm: %w", err)
	}
	// Checked before the data is read: a wrong key map would otherwise show at the very end.
	if t.Output, err = f.output(); err != nil {
		return nil, err
	}
	t.Input, err = f.openInput(e)
	return t, err
}

// output returns where results go, and by which keys the job will know the parameters.
func (f *partitionFlags) output() (out prerun.Output, err error) {
	out = prerun.Output{Dir: f.out, K: f.k, Servers: f.servers}
	if err = out.SetKeyMap(f.keyMap); err != nil {
		err = cli.Usagef("--key-map: %w", err)
	}
	return out, err
}

// openInput returns the input with its progress bar, hashed if --hash-bins is set. Nothing is
// opened yet.
func (f *partitionFlags) openInput(e env) (prerun.Input, error) {
	in := prerun.Input{Path: f.input, Progress: cli.NewProgress(e.bareErr, "reading")}
	if f.hashBins == 0 {
		return in, nil
	}
	var err error
	in.Hash, err = hashOptions(f.hashScheme, f.hashBins, f.hashBits, f.seed)
	return in, err
}

// tables prints the reports as one table. A single one is followed by what moved, with --from,
// and by what the work cost.
func (f *partitionFlags) tables(e env, reports []*prerun.Report) error {
	if err := prerun.Table(e.stdout, reports); err != nil || len(reports) > 1 {
		return err
	}
	r := reports[0]
	if r.Moved != nil {
		if err := r.Moved.Table(e.stdout, r); err != nil {
			return err
		}
	}
	return r.Cost.Table(e.stdout)
}

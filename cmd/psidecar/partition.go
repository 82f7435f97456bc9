package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/algorithm"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/hashing"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
)

// partitionFlags are the flags of `psidecar partition`.
type partitionFlags struct {
	input, out, plot, rules string
	algorithm, keyMap       string
	hashScheme              string
	k, hashBins, hashBits   int
	seed                    uint64
	theta                   int64
	capacity, speed         []float64
	servers                 []int
	budget                  time.Duration
	from, resume            string
	moveAtMost              float64 // percent
	all, json               bool
	stream                  streamFlags
	machines                machineFlags
}

func newPartitionCommand(e env) *cobra.Command {
	var f partitionFlags
	cmd := &cobra.Command{
		Use:   "partition --input FILE -k MACHINES",
		Short: "Divide training data and parameters among machines before a run",
		Long: `Reads libsvm or libffm text (plain, .gz, .bz2, .xz, .zst) and divides its
samples and the parameters that they use among k machines, each a worker and a
server, so that the busiest machine moves the fewest parameters per step.

--out writes a shard of the data per machine, assignment.txt, which
psidecar score reads, and placement.json, which proxy and up take.

--stream is for data beyond memory: the input, which may also be a folder of
shards, is read a few times, and tables and buffers stay within --memory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.stream.on {
				return f.runStream(cmd, e)
			}
			if err := f.stream.unused(cmd); err != nil {
				return err
			}
			return f.run(cmd.Context(), e)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.input, "input", "", "the data: a libsvm or libffm file")
	flags.IntVarP(&f.k, "machines", "k", 0, "number of machines")
	flags.StringVar(&f.algorithm, "algorithm", "best", strings.Join(algorithm.Names(), ", "))
	flags.BoolVar(&f.all, "all", false, "run all algorithms and compare them")
	flags.Uint64Var(&f.seed, "seed", 1, "of all random choices")
	flags.DurationVar(&f.budget, "time-budget", 0, "how long best may go on improving, for instance 30s")
	flags.StringVar(&f.from, "from", "", "with best: assignment.txt of an earlier run, for data to which samples were added at the end; most stay where they are")
	flags.Float64Var(&f.moveAtMost, "move-at-most", 10, "with --from: percent of the earlier samples that may move")
	flags.StringVar(&f.resume, "resume", "", "with best: file for the state of the work, saved every 5 s; where it exists, go on from it: to the end, or after that to something better")
	flags.Int64Var(&f.theta, "theta", 0, "most parameters (bytes, with --rules) that a machine may use as a worker; 0: no bound")
	flags.Float64SliceVar(&f.capacity, "capacity", nil, "relative share of the samples per machine: k numbers")
	flags.Float64SliceVar(&f.speed, "link-speed", nil, "relative link speed per machine: k numbers")
	flags.StringVar(&f.rules, "rules", "", "file of lines: feature ID [bytes=N] [group=NAME] [machine=I], or sample NUMBER [weight=N] [machine=I]")
	flags.IntVar(&f.hashBins, "hash-bins", 0, "hash every row to that many features first; 0: do not")
	flags.IntVar(&f.hashBits, "hash-bits", hashing.DefaultBits, "bits of a hashed feature's code")
	flags.StringVar(&f.hashScheme, "hash-scheme", "oph", "oph for sets, bcws for weights")
	flags.StringVar(&f.keyMap, "key-map", "identity", "keys on the wire for the ids in the file: identity, spread or file:PATH")
	flags.IntSliceVar(&f.servers, "server-ranks", nil, "PS-lite rank of each machine's server: k numbers; default 0,1,...")
	flags.StringVar(&f.out, "out", "", "directory for shards, assignment.txt and placement.json")
	flags.StringVar(&f.plot, "plot", "", "PNG file for a plot of the traffic per machine")
	flags.BoolVar(&f.json, "json", false, "print JSON, an object per algorithm")
	f.machines.register(flags)
	f.stream.register(flags)
	return cmd
}

// check finds what is wrong before any file is read.
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
	for name, list := range map[string]int{"capacity": len(f.capacity), "link-speed": len(f.speed), "server-ranks": len(f.servers)} {
		if list != 0 && list != f.k {
			return cli.Usagef("--%s has %d numbers: want one for each of %d machines", name, list, f.k)
		}
	}
	if ranks := slices.Sorted(slices.Values(f.servers)); slices.ContainsFunc(ranks, func(r int) bool { return r < 0 || r >= f.k }) || len(slices.Compact(ranks)) != len(f.servers) {
		return cli.Usagef("--server-ranks %v: want each of 0 to %d once", f.servers, f.k-1)
	}
	if err := f.checkFrom(); err != nil {
		return err
	}
	if f.all && f.out != "" {
		return cli.Usagef("--all and --out: choose one algorithm to write the output of")
	}
	return nil
}

// checkFrom is check for what goes on from earlier work.
func (f *partitionFlags) checkFrom() error {
	switch {
	case f.from != "" && (f.all || f.algorithm != "best"):
		return cli.Usagef("--from is for --algorithm best only")
	case f.resume != "" && (f.all || f.algorithm != "best"):
		return cli.Usagef("--resume is for --algorithm best only")
	case !(f.moveAtMost >= 0 && f.moveAtMost <= 100):
		return cli.Usagef("--move-at-most %g: want a percentage, 0 to 100", f.moveAtMost)
	}
	return nil
}

func (f *partitionFlags) run(ctx context.Context, e env) error {
	if err := f.check(); err != nil {
		return err
	}
	algorithms, err := f.algorithms()
	if err != nil {
		return err
	}
	speed, capacity, err := f.machines.ask(ctx, f.k)
	if err != nil {
		return err
	}
	if len(f.speed) == 0 {
		f.speed = speed
	}
	if len(f.capacity) == 0 {
		f.capacity = capacity
	}
	out := prerun.Output{Dir: f.out, K: f.k, Servers: f.servers}
	if out.KeyMap, err = dataset.ParseKeyMap(f.keyMap); err != nil {
		return cli.Usagef("--key-map: %w", err)
	}
	in, err := f.openInput(e)
	if err != nil {
		return err
	}
	if err := f.tryOutputs(out); err != nil {
		return err
	}
	g, err := in.Graph(ctx)
	if err != nil {
		return err
	}
	slog.Debug("graph built", "samples", g.Samples(), "parameters", g.Params(), "edges", g.Edges())
	o, err := f.options(g)
	if err != nil {
		return err
	}
	if g, err = f.applyRules(g, &o); err != nil {
		return err
	}
	if err := o.Validate(g); err != nil {
		return fmt.Errorf("%s: %w", f.input, err)
	}
	reports, last, err := f.partition(ctx, e, g, o, algorithms)
	if err != nil {
		return err
	}
	if f.out != "" {
		out.Algorithm = reports[0].Algorithm
		if err := out.Write(ctx, in, g, last); err != nil {
			return err
		}
	}
	return f.show(ctx, e, g, o, reports)
}

// options are those of the flags, but for the rules.
func (f *partitionFlags) options(g *graph.Graph) (partition.Options, error) {
	o := partition.Options{
		K: f.k, Seed: f.seed, Theta: f.theta, Capacity: f.capacity, Speed: f.speed, Budget: f.budget,
	}
	if f.resume != "" {
		o.Keeper = &prerun.Checkpoint{Path: f.resume}
	}
	if f.from == "" {
		return o, nil
	}
	file, err := os.Open(f.from)
	if err != nil {
		return o, fmt.Errorf("opening --from: %w", err)
	}
	defer file.Close()
	o.MoveAtMost = f.moveAtMost / 100
	o.From, err = partition.ReadEarlier(file, f.from, g, f.k)
	return o, err
}

// tryOutputs finds out before the work is done whether its outcome can be
// written.
func (f *partitionFlags) tryOutputs(out prerun.Output) error {
	if f.out != "" {
		if err := out.Prepare(); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	if f.resume != "" {
		if err := prerun.TryFile(f.resume); err != nil {
			return fmt.Errorf("--resume: %w", err)
		}
	}
	if f.plot != "" {
		if err := prerun.TryFile(f.plot); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	return nil
}

func (f *partitionFlags) algorithms() ([]algorithm.Algorithm, error) {
	if f.all {
		return algorithm.All(), nil
	}
	al, err := algorithm.Find(f.algorithm)
	if err != nil {
		return nil, cli.Usagef("--algorithm: %w", err)
	}
	return []algorithm.Algorithm{al}, nil
}

// openInput describes the input, hashed where that is asked for.
func (f *partitionFlags) openInput(e env) (prerun.Input, error) {
	in := prerun.Input{Path: f.input, Progress: cli.NewProgress(e.bareErr, "reading")}
	if f.hashBins == 0 {
		return in, nil
	}
	scheme, err := hashing.ParseScheme(f.hashScheme)
	if err != nil {
		return in, cli.Usagef("--hash-scheme: %w", err)
	}
	in.Hash = &hashing.Options{Scheme: scheme, Bins: f.hashBins, Bits: f.hashBits, Seed: f.seed}
	if _, err := hashing.New(*in.Hash); err != nil {
		return in, cli.Usagef("--hash-bins, --hash-bits: %w", err)
	}
	return in, nil
}

func (f *partitionFlags) applyRules(g *graph.Graph, o *partition.Options) (*graph.Graph, error) {
	if f.rules == "" {
		return g, nil
	}
	file, err := os.Open(f.rules)
	if err != nil {
		return nil, fmt.Errorf("opening --rules: %w", err)
	}
	defer file.Close()
	rules, err := prerun.ReadRules(file, f.rules, f.k)
	if err != nil {
		return nil, err
	}
	g, unused, err := rules.Apply(g, o)
	if unused > 0 {
		slog.Warn("rules for features that no sample uses", "rules", unused, "file", f.rules)
	}
	return g, err
}

// partition runs the algorithms and reports on each; it also returns the last
// assignment.
func (f *partitionFlags) partition(ctx context.Context, e env, g *graph.Graph, o partition.Options, algorithms []algorithm.Algorithm) ([]*prerun.Report, *partition.Assignment, error) {
	random, err := prerun.RandomBaseline(ctx, g, o)
	if err != nil {
		return nil, nil, err
	}
	var reports []*prerun.Report
	var last *partition.Assignment
	for _, al := range algorithms {
		o.Progress = cli.NewProgress(e.bareErr, al.Name)
		a, cost, err := prerun.Run(ctx, g, al, o)
		if errors.Is(err, partition.ErrOtherState) {
			return nil, nil, fmt.Errorf("--resume %s: %w; remove it to start anew, or name another file", f.resume, err)
		}
		if errors.Is(err, context.Canceled) && f.resume != "" {
			return nil, nil, fmt.Errorf("%w; the same command goes on from %s", err, f.resume)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", f.input, err)
		}
		o.Progress(1) // which clears the bar's line for the report
		r := prerun.Judge(g, a, o, random)
		r.Algorithm, r.Seconds, r.Cost = al.Name, cost.Took().Seconds(), cost
		if o.From != nil {
			r.Moved = prerun.CountMoved(o.From, a)
		}
		reports, last = append(reports, r), a
	}
	return reports, last, nil
}

// show prints the reports and draws the plot. A plot of one algorithm also has
// a random partition, for comparison.
func (f *partitionFlags) show(ctx context.Context, e env, g *graph.Graph, o partition.Options, reports []*prerun.Report) error {
	if f.plot != "" {
		drawn := reports
		if len(reports) == 1 && reports[0].Algorithm != "random" {
			a, err := partition.Random(ctx, g, partition.Options{K: o.K, Seed: 1, Capacity: o.Capacity})
			if err != nil {
				return err
			}
			r := prerun.Judge(g, a, o, reports[0].Random)
			r.Algorithm = "random"
			drawn = []*prerun.Report{r, reports[0]}
		}
		if err := drawPlot(f.plot, fmt.Sprintf("%s, %d machines", f.input, f.k), drawn); err != nil {
			return err
		}
	}
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

// tables prints the reports, and where there is one alone what it took.
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

func drawPlot(path, title string, reports []*prerun.Report) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("opening --plot: %w", err)
	}
	err = prerun.Plot(file, title, reports)
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("writing %s: %w", path, closeErr)
	}
	return err
}

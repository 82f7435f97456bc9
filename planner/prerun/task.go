package prerun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A Task is a partition of training data before a run, as psidecar partition makes it.
type Task struct {
	Input Input
	// Each of the Algorithms is run and judged; outputs are written only for a single one.
	Algorithms []Algorithm
	// Nothing is written if Output.Dir is "".
	Output Output
	K      int // machines
	Seed   uint64
	// Theta is the most parameters, or bytes with Rules, that a machine may use; 0 for no bound.
	Theta int64
	// Capacity is each machine's share of the samples; nil for equal shares.
	Capacity []float64
	// Speed is the speed of each machine's link; nil for equal speeds.
	Speed []float64
	// Budget is how long the algorithm best may go on improving.
	Budget time.Duration
	// Rules is a file with weights, groups and fixed machines; "" for none.
	Rules string
	// From is assignment.txt of an earlier partition to stay close to; "" for none. At most the
	// fraction MoveAtMost of its samples moves.
	From       string
	MoveAtMost float64
	// Resume is a file for the state of the work; "" for none.
	Resume string
	// Plot is a PNG file; "" for none.
	Plot string
	// Progress returns, for a piece of work, a function that takes the fraction of it that is done,
	// from 0 to 1. It must not be nil.
	Progress func(what string) func(done float64)
}

// Algorithms returns the names of all algorithms.
func Algorithms() []string { return AlgorithmNames() }

// FindAlgorithms returns the algorithm of that name, or all algorithms.
func FindAlgorithms(name string, all bool) ([]Algorithm, error) {
	if all {
		return AllAlgorithms(), nil
	}
	al, err := FindAlgorithm(name)
	return []Algorithm{al}, err
}

// Run reads the data, partitions it by each algorithm, judges the results and writes the outputs.
// It fails before the work begins if an output cannot be written. Errors name the flag of psidecar
// partition that they come from.
func (t *Task) Run(ctx context.Context) ([]*Report, error) {
	if err := t.tryOutputs(); err != nil {
		return nil, err
	}
	g, err := t.Input.Graph(ctx)
	if err != nil {
		return nil, err
	}
	slog.Debug("graph built", "samples", g.Samples(), "parameters", g.Params(), "edges", g.Edges())
	o, err := t.options(g)
	if err != nil {
		return nil, err
	}
	// Rules come after the options, since groups and fixed machines refer to the graph's numbers.
	if g, err = t.applyRules(g, &o); err != nil {
		return nil, err
	}
	// Before any algorithm runs, so that a contradiction is reported at once.
	if err := o.Validate(g); err != nil {
		return nil, fmt.Errorf("%s: %w", t.Input.Path, err)
	}
	reports, last, err := t.divide(ctx, g, o)
	if err != nil {
		return nil, err
	}
	if t.Output.Dir != "" {
		t.Output.Algorithm = reports[0].Algorithm
		if err := t.Output.Write(ctx, t.Input, g, last); err != nil {
			return nil, err
		}
	}
	// The plot comes last; if it fails, the partition is on disk all the same.
	return reports, t.drawPlot(ctx, g, o, reports)
}

// options returns the options of the flags, without the rules.
func (t *Task) options(g *graph.Graph) (partition.Options, error) {
	o := partition.Options{
		K: t.K, Seed: t.Seed, Theta: t.Theta, Capacity: t.Capacity, Speed: t.Speed, Budget: t.Budget,
	}
	if t.Resume != "" {
		o.Keeper = &Checkpoint{Path: t.Resume}
	}
	if t.From == "" {
		return o, nil
	}
	file, err := os.Open(t.From)
	if err != nil {
		return o, fmt.Errorf("opening --from: %w", err)
	}
	defer file.Close()
	o.MoveAtMost = t.MoveAtMost
	o.From, err = partition.ReadEarlier(file, t.From, g, t.K)
	return o, err
}

// tryOutputs returns an error if an output could not be written.
func (t *Task) tryOutputs() error {
	if t.Output.Dir != "" {
		if err := t.Output.Prepare(); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	if t.Resume != "" {
		if err := TryFile(t.Resume); err != nil {
			return fmt.Errorf("--resume: %w", err)
		}
	}
	if t.Plot != "" {
		if err := TryFile(t.Plot); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	return nil
}

// applyRules returns the graph with the weights of the rules file and enters its constraints in o.
func (t *Task) applyRules(g *graph.Graph, o *partition.Options) (*graph.Graph, error) {
	if t.Rules == "" {
		return g, nil
	}
	file, err := os.Open(t.Rules)
	if err != nil {
		return nil, fmt.Errorf("opening --rules: %w", err)
	}
	defer file.Close()
	rules, err := ReadRules(file, t.Rules, t.K)
	if err != nil {
		return nil, err
	}
	g, unused, err := rules.Apply(g, o)
	if unused > 0 {
		slog.Warn("ignoring rules for features that no sample uses", "rules", unused, "file", t.Rules)
	}
	return g, err
}

// divide runs and judges the algorithms, and also returns the last assignment. A budget, a state to
// resume and an earlier assignment are for those algorithms that heed them.
func (t *Task) divide(ctx context.Context, g *graph.Graph, o partition.Options) ([]*Report, *partition.Assignment, error) {
	// One baseline serves all algorithms: it depends on the graph only.
	random, err := RandomBaseline(ctx, g, o)
	if err != nil {
		return nil, nil, err
	}
	var reports []*Report
	var last *partition.Assignment
	for _, al := range t.Algorithms {
		o.Progress = t.Progress(al.Name)
		a, cost, err := Run(ctx, g, al, o)
		if errors.Is(err, partition.ErrOtherState) {
			return nil, nil, fmt.Errorf("--resume %s: %w; remove it to start over, or use another file", t.Resume, err)
		}
		// The state was saved at most a few seconds ago.
		if errors.Is(err, context.Canceled) && t.Resume != "" {
			return nil, nil, fmt.Errorf("%w; run the same command again to resume from %s", err, t.Resume)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", t.Input.Path, err)
		}
		o.Progress(1) // which clears the bar's line for the report
		r := Judge(g, a, o, random)
		r.Algorithm, r.Seconds, r.Cost = al.Name, cost.Took().Seconds(), cost
		if o.From != nil {
			r.Moved = CountMoved(o.From, a)
		}
		// With several algorithms the assignments are not kept, only the judgements: each may be
		// large.
		reports, last = append(reports, r), a
	}
	return reports, last, nil
}

// drawPlot draws the traffic of each report, and beside a single one that of a random partition.
func (t *Task) drawPlot(ctx context.Context, g *graph.Graph, o partition.Options, reports []*Report) error {
	if t.Plot == "" {
		return nil
	}
	drawn := reports
	if len(reports) == 1 && reports[0].Algorithm != "random" {
		// The baseline is a mean of several random partitions; the plot shows one of them machine
		// by machine.
		a, err := partition.Random(ctx, g, partition.Options{K: o.K, Seed: 1, Capacity: o.Capacity})
		if err != nil {
			return err
		}
		r := Judge(g, a, o, reports[0].Random)
		r.Algorithm = "random"
		drawn = []*Report{r, reports[0]}
	}
	return writePlot(t.Plot, fmt.Sprintf("%s, %d machines", t.Input.Path, t.K), drawn)
}

// writePlot draws the reports into a file.
func writePlot(path, title string, reports []*Report) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("opening --plot: %w", err)
	}
	err = Plot(file, title, reports)
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("writing %s: %w", path, closeErr)
	}
	return err
}

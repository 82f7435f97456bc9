package prerun

import (
	"context"
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
	// Rules is a file with weights; "" for none.
	Rules string
	// From is assignment.txt of an earlier partition to stay close to; "" for none. At most the
	// fraction MoveAtMost of its samples moves.
	From       string
	MoveAtMost float64
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
	if g, err = t.applyRules(g); err != nil {
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
	return reports, nil
}

// options returns the options of the flags, without the rules.
func (t *Task) options(g *graph.Graph) (partition.Options, error) {
	o := partition.Options{
		K: t.K, Seed: t.Seed, Theta: t.Theta, Capacity: t.Capacity, Speed: t.Speed, Budget: t.Budget,
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
	return nil
}

// applyRules returns the graph with the weights of the rules file.
func (t *Task) applyRules(g *graph.Graph) (*graph.Graph, error) {
	if t.Rules == "" {
		return g, nil
	}
	file, err := os.Open(t.Rules)
	if err != nil {
		return nil, fmt.Errorf("opening --rules: %w", err)
	}
	defer file.Close()
	rules, err := ReadRules(file, t.Rules)
	if err != nil {
		return nil, err
	}
	g, unused, err := rules.Apply(g)
	if unused > 0 {
		slog.Warn("ignoring rules for features that no sample uses", "rules", unused, "file", t.Rules)
	}
	return g, err
}

// divide runs and judges the algorithms, and also returns the last assignment. A budget
// and an earlier assignment are for those algorithms that heed them.
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

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/planner/dynamic"
	"github.com/psidecar/psidecar/planner/simulate"
	"github.com/psidecar/psidecar/test/eval/report"
	"github.com/psidecar/psidecar/test/traces"
)

// dynamicPart simulates keys that move while a job trains: figure 8 of DW23, of nets that are
// pruned, and hot keys that wander.
func dynamicPart(ctx context.Context, e *evaluation) error {
	var figure []report.Panel
	for _, hidden := range []int{16, 48} {
		if err := ctx.Err(); err != nil {
			return err
		}
		pictures, name, err := e.pictures()
		if err != nil {
			return err
		}
		p := traces.Pruning{Workers: 8, Servers: 8, Pictures: pictures, Hidden: hidden, Batch: 16, Snapshots: 30, Rounds: 2,
			Sparsity: 0.95, Epsilon: 0.01, Own: 0.8, LearningRate: 0.1, Seed: 1}
		if e.quick {
			p.Snapshots = 8
		}
		var trained traces.PruningReport
		// The net is trained and pruned for real. What its workers use is the trace.
		uses, err := p.Trace(&trained)
		if err != nil {
			return err
		}
		r, err := e.simulate(uses, p.Rounds, true)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.out, "\n### A net of %d parameters learns %s and is pruned to %d, accuracy %.3f (DW23 Fig. 8)\n\n```\n", trained.Parameters, name,
			trained.Left[len(trained.Left)-1], trained.Accuracy[len(trained.Accuracy)-1])
		if err := errors.Join(r.Print(e.out), fence(e.out)); err != nil {
			return err
		}
		// The larger net alone is compared with the paper's claim.
		if hidden == 48 {
			t := volumes(r.Results)
			t.title = fmt.Sprintf("DW23 Fig. 8, volumes: bytes over all epochs, a net of %d parameters", trained.Parameters)
			if err := t.write(e.out); err != nil {
				return err
			}
		}
		panel := report.Panel{Title: fmt.Sprintf("pruning, %d parameters", trained.Parameters), X: "epoch", Y: "MB between machines, cumulative"}
		for _, r := range chosen8(r.Results) {
			panel.Lines = append(panel.Lines, report.Line{Name: r.Strategy, Points: cumulative(r.Epochs)})
		}
		figure = append(figure, panel)
	}
	if err := e.writePanels("dynamic-fig8.png", figure); err != nil {
		return err
	}
	return e.wandering()
}

// cumulative returns the running sum of the bytes of all machines, as DW23 Fig. 8 draws it.
func cumulative(epochs []simulate.Epoch) plotter.XYs {
	sum := 0.0
	points := make(plotter.XYs, len(epochs))
	for i, e := range epochs {
		sum += e.Total
		points[i] = plotter.XY{X: float64(i), Y: sum / 1e6}
	}
	return points
}

// volumes returns a table of the bytes that strategies sent in all, moves included, and of
// their ratio to MGP's.
func volumes(all []simulate.Result) *table {
	t := &table{head: []string{"strategy", "bytes", "of them moves", "of MGP's"}}
	i := slices.IndexFunc(all, func(r simulate.Result) bool { return r.Strategy == "mgp" })
	for _, r := range all {
		// Without MGP among the strategies there is nothing to compare with.
		ratio := "-"
		if i >= 0 && all[i].Sum.Total > 0 {
			ratio = fmt.Sprintf("%.3f", r.Sum.Total/all[i].Sum.Total)
		}
		t.addRow(r.Strategy, fmt.Sprintf("%.0f", r.Sum.Total), fmt.Sprintf("%.0f", r.Sum.Migration), ratio)
	}
	return t
}

// fence ends a piece of text that is printed as it is.
func fence(w io.Writer) error {
	_, err := fmt.Fprint(w, "```\n\n")
	return err
}

// chosen8 returns the strategies that DW23 Fig. 8 compares, and ours.
func chosen8(all []simulate.Result) []simulate.Result {
	var chosen []simulate.Result
	for _, r := range all {
		if r.Strategy == "dppa" || r.Strategy == "mgp" || r.Strategy == "locality" {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

// wandering simulates hot keys that wander: each worker turns to other favourites from time to
// time. No paper has it; it is the case for which keys are moved while a job runs.
func (e *evaluation) wandering() error {
	w := traces.Wandering{Workers: 8, Servers: 8, Steps: 2000, Width: 1, Seed: 1, Count: train.CountOptions{
		Keys: 200_000, Batch: 200, Favourites: 1000, Common: 0.1, Skew: 1, Wander: 300}}
	if e.quick {
		w.Steps = 700
	}
	// It counts accesses only; nothing is trained, since which keys are hot is drawn.
	uses, err := w.Trace()
	if err != nil {
		return err
	}
	r, err := e.simulate(uses, 10, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "\n### Hot keys that wander: 8 workers, each with other favourites every %d steps\n\n```\n", w.Count.Wander)
	if err := errors.Join(r.Print(e.out), fence(e.out)); err != nil {
		return err
	}
	panel := report.Panel{Title: "wandering hot keys", X: "epoch", Y: "MB between machines, cumulative"}
	for _, r := range r.Results {
		panel.Lines = append(panel.Lines, report.Line{Name: r.Strategy, Points: cumulative(r.Epochs)})
	}
	return e.writePanels("dynamic-wandering.png", []report.Panel{panel})
}

// pictures returns MNIST's and their name, or made ones if the data set is absent.
func (e *evaluation) pictures() (*model.Images, string, error) {
	const n = 4000
	images, labels := filepath.Join(e.datasets, "t10k-images-idx3-ubyte.xz"), filepath.Join(e.datasets, "t10k-labels-idx1-ubyte.xz")
	if _, err := os.Stat(images); err != nil {
		fmt.Fprintf(e.log, "no file %s: the net learns pictures that are made\n", images)
		return traces.DrawImages(n, 20, 1), "pictures that are made", nil
	}
	pictures, err := model.LoadImages(images, labels, model.Share{Index: 0, Of: 1})
	return pictures, "MNIST", err
}

// simulate tries all strategies on a trace, by way of a recording in a temporary file, as
// psidecar simulate does. planned makes locality move keys at the ends of epochs only, as DPPA
// and MGP do.
func (e *evaluation) simulate(uses traces.Trace, epochSteps int, planned bool) (*simulate.Report, error) {
	f, err := os.CreateTemp("", "psidecar-eval-*.psr")
	if err != nil {
		return nil, fmt.Errorf("making a trace: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	w, err := recording.NewWriter(f, recording.Header{Version: "eval", Host: "eval", SampledOneIn: 1})
	if err != nil {
		return nil, err
	}
	if err := uses(w.Add); err != nil {
		return nil, err
	}
	// It writes the end of the recording, without which it would count as cut off.
	if _, err := w.Close(0, 0); err != nil {
		return nil, err
	}
	return simulate.RunRecorded([]string{f.Name()}, simulate.RecordedOptions{
		EpochSteps: epochSteps, KeyBytes: 8, Strategies: dynamic.Names(), Batches: 2, Horizon: 200, Seed: 1, Planned: planned,
	})
}

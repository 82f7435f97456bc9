package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/test/eval/report"
)

// bins repeats figure 5 of DW23: what is sent between 8 machines, and how often a logistic
// regression is right, by the number of bins that rows are hashed to. As in section 6.1 the
// volume is counted over all machines.
func bins(ctx context.Context, e *evaluation) error {
	const file, k = "rcv1-excerpt", 8
	path := filepath.Join(e.datasets, file+".libsvm.xz")
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("a data set: %w", err)
	}
	rows, err := dataset.Load(ctx, path, dataset.Options{})
	if err != nil {
		return err
	}
	sizes, names := []int{16, 32, 64, 128, 256, 512}, []string{"mbp", "dppa"}
	if e.quick {
		// Fewer sizes, and still from few bins to many.
		rows, sizes = first(rows, rows.Len()/4), []int{16, 64, 256}
	}
	t := table{title: fmt.Sprintf("DW23 Fig. 5: %s hashed (%d samples, %d machines, codes of %d bits), values pushed or pulled between machines in a step of all samples, and a logistic regression's accuracy on a fifth of the rows", file, rows.Len(), k, dataset.DefaultHashBits),
		head: []string{"bins", "parameters", "edges", "random", "MGP", "DPPA", "DPPA, of random", "test accuracy %"}}
	volume := report.Panel{Title: "DW23 Fig. 5: volume by bins, k = 8", X: "bins", Y: "values between machines", LogX: true, Legend: true,
		Lines: []report.Line{{Name: "random"}, {Name: "MGP"}, {Name: "DPPA"}}}
	right := report.Panel{Title: "DW23 Fig. 5: accuracy by bins", X: "bins", Y: "test accuracy %", LogX: true, Legend: true, Lines: []report.Line{{Name: "logistic regression"}}}
	// 0 stands for rows that are not hashed, the last line of the table.
	for _, n := range append(sizes, 0) {
		e.progress("DW23 Fig. 5: %d bins", n)
		hashed, name := rows, "not hashed"
		if n > 0 {
			if hashed, err = dataset.HashDataset(ctx, rows, dataset.HashOptions{Scheme: dataset.OPH, Bins: n, Seed: 1}); err != nil {
				return err
			}
			name = fmt.Sprint(n)
		}
		g, volumes, err := volumesOf(ctx, hashed, k, names)
		if err != nil {
			return err
		}
		// On the same hashed rows, so that both panels are about the same choice of bins.
		accuracy, err := dataset.Evaluate(ctx, hashed, 1)
		if err != nil {
			return err
		}
		t.addRow(name, fmt.Sprint(g.Params()), fmt.Sprint(g.Edges()), fmt.Sprintf("%.0f", volumes[0]), fmt.Sprintf("%.0f", volumes[1]), fmt.Sprintf("%.0f", volumes[2]),
			fmt.Sprintf("%.3f", volumes[2]/volumes[0]), fmt.Sprintf("%.2f", 100*accuracy.Test))
		// It has no place on the axis of bins.
		if n == 0 {
			continue
		}
		for i := range volume.Lines {
			volume.Lines[i].Points = append(volume.Lines[i].Points, plotter.XY{X: float64(n), Y: volumes[i]})
		}
		right.Lines[0].Points = append(right.Lines[0].Points, plotter.XY{X: float64(n), Y: 100 * accuracy.Test})
		volume.Ticks, right.Ticks = append(volume.Ticks, float64(n)), append(right.Ticks, float64(n))
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	few, many := volume.Lines[2].Points, right.Lines[0].Points
	last := len(few) - 1
	// The report compares this with the paper's claim, which has no numbers.
	fewest := table{title: "DW23 Fig. 5, the fewest bins by the most", head: []string{"", "what is left of both"}}
	fewest.addRow("fewest of most", fmt.Sprintf("%.3f of the volume, %.3f of the accuracy", few[0].Y/few[last].Y, many[0].Y/many[last].Y))
	if err := fewest.write(e.out); err != nil {
		return err
	}
	// Accuracies differ by a few percent, which an axis from 0 would hide.
	right.Floor = lowest(right.Lines) - 1
	return e.writePanels("bins.png", []report.Panel{volume, right})
}

// volumesOf returns what is sent between k machines in all in a step, divided at random and
// then by each of the algorithms, and the graph of the rows.
func volumesOf(ctx context.Context, rows *dataset.Rows, k int, names []string) (*graph.Graph, []float64, error) {
	var b graph.Builder
	if err := b.Add(rows); err != nil {
		return nil, nil, err
	}
	g, err := b.Build(ctx)
	if err != nil {
		return nil, nil, err
	}
	reports, err := judgeThose(ctx, g, k, names)
	if err != nil {
		return nil, nil, err
	}
	volumes := []float64{reports[0].Random.Total}
	for _, r := range reports {
		volumes = append(volumes, float64(r.Traffic.Total))
	}
	return g, volumes, nil
}

// first returns the first n rows, which it shares with rows.
func first(rows *dataset.Rows, n int) *dataset.Rows {
	to := rows.Start[n]
	return &dataset.Rows{Line: rows.Line[:n], Label: rows.Label[:n], Start: rows.Start[:n+1], ID: rows.ID[:to], Value: rows.Value[:to]}
}

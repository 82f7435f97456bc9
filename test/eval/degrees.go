package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/test/eval/report"
)

// degrees draws how many samples and parameters there are of each degree (DWW21 figure 7, DW23
// figure 2), and tabulates how few of them hold most edges.
func degrees(ctx context.Context, e *evaluation) error {
	t := table{title: "Node degrees (DWW21 Fig. 7, DW23 Fig. 2): a sample's is the number of its parameters, a parameter's that of its samples; the mean of table 4 is that of the paper's own set",
		head: []string{"nodes", "how many", "mean", "table 4's mean", "median", "99th percentile", "largest", "below the mean, %", "edges at the largest 1%, %"}}
	var panels []report.Panel
	for _, row := range []struct{ file, standsFor, mean string }{{"rcv1-excerpt", "rcv1.binary", "30"}, {"news20-rebuilt", "news20", "18"}} {
		g, err := e.graphOf(ctx, row.file, 0)
		if errors.Is(err, fs.ErrNotExist) {
			// One set is enough for a table.
			e.progress("degrees: %s skipped, no file in %s (--datasets names the folder)", row.file, e.datasets)
			continue
		}
		if err != nil {
			return err
		}
		panel := report.Panel{Title: row.file + " for " + row.standsFor, X: "degree, from here to twice as many", Y: "nodes", LogX: true, LogY: true, Legend: true}
		for _, side := range []struct {
			name    string
			n       int
			degree  func(int) int
			printed string
		}{
			// The papers print one mean for a set, so both rows are compared with the same
			// number.
			{"samples", g.Samples(), func(i int) int { return len(g.ParamsOf(i)) }, row.mean},
			{"parameters", g.Params(), func(i int) int { return len(g.SamplesOf(i)) }, row.mean},
		} {
			all := make([]int, side.n)
			for i := range all {
				all[i] = side.degree(i)
			}
			d := summarize(all)
			t.addRow(row.file+", "+side.name, fmt.Sprint(side.n), fmt.Sprintf("%.1f", d.mean), side.printed, fmt.Sprint(d.median), fmt.Sprint(d.high), fmt.Sprint(d.largest),
				fmt.Sprintf("%.1f", 100*d.below), fmt.Sprintf("%.1f", 100*d.heavy))
			panel.Lines = append(panel.Lines, report.Line{Name: side.name, Points: histogram(all)})
		}
		panel.Ticks = []float64{1, 10, 100, 1000, 10_000}
		panels = append(panels, panel)
	}
	if len(panels) == 0 {
		return nil
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	return e.writePanels("degrees.png", panels)
}

// graphOf returns the graph of a data set, or of its first rows unless rows is 0. The error of
// an absent file wraps [fs.ErrNotExist].
func (e *evaluation) graphOf(ctx context.Context, name string, rows int) (*graph.Graph, error) {
	path := filepath.Join(e.datasets, name+".libsvm.xz")
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	var b graph.Builder
	left := rows
	err := dataset.ReadFile(ctx, path, dataset.Options{}, func(r *dataset.Rows) error {
		if rows == 0 {
			return b.Add(r)
		}
		for i := range min(left, r.Len()) {
			ids, _ := r.Features(i)
			b.AddRow(ids)
			left--
		}
		// The file is not read to its end for a few rows.
		if left == 0 {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return b.Build(ctx)
}

// errEnough ends the reading of a file before its end.
var errEnough = errors.New("enough rows")

// spreadOf describes a list of degrees.
type spreadOf struct {
	mean, below, heavy    float64 // below: share of nodes below the mean; heavy: share of the edges at the largest hundredth
	median, high, largest int
}

// summarize describes degrees, of which there is at least one. It does not change them.
func summarize(degrees []int) (d spreadOf) {
	all := slices.Clone(degrees)
	slices.Sort(all)
	sum := 0
	for _, n := range all {
		sum += n
	}
	n := len(all)
	d.mean, d.median, d.high, d.largest = float64(sum)/float64(n), all[n/2], all[99*n/100], all[n-1]
	top, below := 0, 0
	for i, x := range all {
		if float64(x) < d.mean {
			below++
		}
		// One node at least, however few there are.
		if i >= n-max(1, n/100) {
			top += x
		}
	}
	d.below, d.heavy = float64(below)/float64(n), float64(top)/float64(sum)
	return d
}

// histogram counts the nodes of degrees from each power of two to the next. Those of degree 0,
// which have no place on a logarithmic axis, are left out.
func histogram(degrees []int) (points plotter.XYs) {
	var counts []int
	for _, d := range degrees {
		if d == 0 {
			continue
		}
		// Doubling ranges, as single degrees would be noise at the thin end.
		at := int(math.Log2(float64(d)))
		for len(counts) <= at {
			counts = append(counts, 0)
		}
		counts[at]++
	}
	for i, n := range counts {
		if n > 0 {
			points = append(points, plotter.XY{X: math.Pow(2, float64(i)), Y: float64(n)})
		}
	}
	return points
}

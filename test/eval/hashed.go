package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/eval/report"
)

// fewBins and moreBins are the numbers of features to which the rows of figures 6 and 7 are
// hashed.
const fewBins, moreBins = 16, 64

// hashedNames are the algorithms of both figures; mbp stands for the papers' MGP.
var hashedNames = []string{"mbp", "dppa"}

// A hashedPoint is one place of a figure, with what is sent between machines there: at random,
// by MGP and by DPPA.
type hashedPoint struct {
	x       float64 // number of machines, or of samples for each parameter
	volumes []float64
}

// hashed repeats figures 6 and 7 of DW23: what is sent between machines with rows hashed to few
// bins and to more, by the number of machines, and by the number of samples for each parameter.
// As in section 6.1 the volume is that of all machines.
func hashed(ctx context.Context, e *evaluation) error {
	machines, ratios := []float64{2, 4, 8, 16, 32}, []float64{0.5, 1, 2, 4}
	if e.quick {
		machines, ratios = []float64{2, 8, 32}, []float64{0.5, 2}
	}
	rows, err := dataset.Load(ctx, filepath.Join(e.datasets, "rcv1-excerpt.libsvm.xz"), dataset.Options{})
	if err != nil {
		return err
	}
	if e.quick {
		rows = first(rows, rows.Len()/8)
	}
	var panels []report.Panel
	var series [4][]hashedPoint // figure 6 with few and with more bins, figure 7 likewise
	for i, bins := range []int{fewBins, moreBins} {
		for _, k := range machines {
			p, err := e.hashedPoint(ctx, fmt.Sprintf("DW23 Fig. 6, %d bins", bins), rows, bins, k, int(k))
			if err != nil {
				return err
			}
			series[i] = append(series[i], p)
		}
		for _, ratio := range ratios {
			p, err := e.hashedPoint(ctx, fmt.Sprintf("DW23 Fig. 7, %d bins", bins), randomRows(int(2000*ratio), 2000, 30), bins, ratio, 8)
			if err != nil {
				return err
			}
			series[2+i] = append(series[2+i], p)
		}
	}
	for i, s := range series {
		bins := []int{fewBins, moreBins}[i%2]
		title, x := fmt.Sprintf("DW23 Fig. 6: rcv1-excerpt (%d samples) hashed to %d bins", rows.Len(), bins), "machines"
		if i >= 2 {
			title, x = fmt.Sprintf("DW23 Fig. 7: rows of 30 of 2,000 features hashed to %d bins, k = 8", bins), "samples / parameters"
		}
		panel, err := writeHashed(e.out, title, x, s)
		if err != nil {
			return err
		}
		panels = append(panels, panel)
	}
	shapes := hashedShapes(series)
	return errors.Join(shapes.write(e.out), e.writePanels("hashed.png", panels))
}

// hashedPoint hashes rows to so many bins and divides them among k machines. what is for the
// progress.
func (e *evaluation) hashedPoint(ctx context.Context, what string, rows *dataset.Rows, bins int, x float64, k int) (hashedPoint, error) {
	e.progress("%s: %g", what, x)
	short, err := dataset.HashDataset(ctx, rows, dataset.HashOptions{Scheme: dataset.OPH, Bins: bins, Seed: 1})
	if err != nil {
		return hashedPoint{}, err
	}
	_, volumes, err := volumesOf(ctx, short, k, hashedNames)
	return hashedPoint{x, volumes}, err
}

// writeHashed writes the table of a figure and returns its panel.
func writeHashed(w io.Writer, title, x string, points []hashedPoint) (report.Panel, error) {
	t := table{title: title + ", values between machines in a step of all samples", head: []string{x, "random", "MGP", "DPPA", "DPPA, of MGP"}}
	panel := report.Panel{Title: title, X: x, Y: "values between machines", LogX: true, Legend: true, Lines: []report.Line{{Name: "random"}, {Name: "MGP"}, {Name: "DPPA"}}}
	for _, p := range points {
		v := p.volumes
		t.addRow(fmt.Sprintf("%g", p.x), fmt.Sprintf("%.0f", v[0]), fmt.Sprintf("%.0f", v[1]), fmt.Sprintf("%.0f", v[2]), fmt.Sprintf("%.3f", v[2]/v[1]))
		for i := range panel.Lines {
			panel.Lines[i].Points = append(panel.Lines[i].Points, plotter.XY{X: p.x, Y: v[i]})
		}
		panel.Ticks = append(panel.Ticks, p.x)
	}
	return panel, t.write(w)
}

// hashedShapes returns as numbers what the paper's text says about both figures.
func hashedShapes(series [4][]hashedPoint) *table {
	ends := func(s []hashedPoint) string {
		return fmt.Sprintf("%.2f", s[len(s)-1].volumes[2]/s[0].volumes[2])
	}
	// gap is MGP's volume by DPPA's, over all points of a figure.
	gap := func(s []hashedPoint) string {
		mgp, dppa := 0.0, 0.0
		for _, p := range s {
			mgp, dppa = mgp+p.volumes[1], dppa+p.volumes[2]
		}
		return fmt.Sprintf("%.3f", mgp/dppa)
	}
	most := func(of int) string {
		worst := 0.0
		for _, s := range series[:2] {
			for _, p := range s {
				worst = max(worst, p.volumes[2]/p.volumes[of])
			}
		}
		return fmt.Sprintf("%.3f", worst)
	}
	last := len(series[0]) - 1
	t := &table{title: "DW23 Fig. 6 and 7, shapes", head: []string{"", "ours"}}
	t.addRow("volume with the most machines, of that with the fewest", ends(series[1]))
	t.addRow("volume with few bins, of that with more", fmt.Sprintf("%.2f", series[0][last].volumes[2]/series[1][last].volumes[2]))
	t.addRow("DPPA, of random, at most", most(0))
	t.addRow("DPPA, of MGP, at most", most(1))
	t.addRow("volume with the most samples for each parameter, of that with the fewest", ends(series[3]))
	t.addRow("MGP by DPPA, more bins", gap(series[3]))
	t.addRow("MGP by DPPA, few bins", gap(series[2]))
	return t
}

// randomRows returns samples with degree different features each, drawn evenly from params
// features. Fewer than degree would never end.
func randomRows(samples, params, degree int) *dataset.Rows {
	rng := rand.New(rand.NewPCG(1, 1))
	rows := &dataset.Rows{Start: []int{0}}
	for i := range samples {
		seen := map[uint64]bool{}
		for len(seen) < degree {
			id := uint64(rng.IntN(params))
			if !seen[id] {
				seen[id] = true
				rows.ID, rows.Value = append(rows.ID, id), append(rows.Value, 1)
			}
		}
		rows.Line, rows.Label, rows.Start = append(rows.Line, i+1), append(rows.Label, 1), append(rows.Start, len(rows.ID))
	}
	return rows
}

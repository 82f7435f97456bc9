package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/test/eval/report"
)

// byMachines repeats figure 10 of DWW21: what the algorithms gain over random on the sets that
// stand for CTRa and soc-LiveJournal, by the number of machines. With --quick it takes the
// first 4,000 rows and three numbers of machines.
func byMachines(ctx context.Context, e *evaluation) error {
	counts, names := []int{2, 4, 8, 16, 32, 64}, []string{"tsh1", "tsh2", "mbp"}
	if e.quick {
		counts = []int{2, 8, 32}
	}
	drop := table{title: "DWW21 Fig. 10, from 8 machines to the most: the gain's growth", head: []string{"data set"}}
	for _, name := range names {
		drop.head = append(drop.head, display(name))
	}
	var panels []report.Panel
	for _, row := range []struct {
		file, standsFor string
		quickRows       int
	}{{"criteo-80k", "CTRa", 4000}, {"soc-slashdot", "soc-LiveJournal", 4000}} {
		rows := 0
		if e.quick {
			rows = row.quickRows
		}
		g, err := e.graphOf(ctx, row.file, rows)
		if errors.Is(err, fs.ErrNotExist) {
			e.progress("machines: %s skipped, no file in %s (--datasets names the folder)", row.file, e.datasets)
			continue
		}
		if err != nil {
			return err
		}
		t := table{title: fmt.Sprintf("DWW21 Fig. 10: %s for %s (%d samples, %d parameters, %d edges), improvement of the busiest machine over random in %%", row.file, row.standsFor, g.Samples(), g.Params(), g.Edges()),
			head: []string{"machines"}}
		panel := report.Panel{Title: fmt.Sprintf("DWW21 Fig. 10: %s for %s", row.file, row.standsFor), X: "machines k", Y: "improvement of max over random (%)", LogX: true, Gain: true, Legend: true}
		for _, name := range names {
			t.head = append(t.head, display(name))
			panel.Lines = append(panel.Lines, report.Line{Name: display(name), Colour: colourOf(display(name))})
		}
		for _, k := range counts {
			e.progress("DWW21 Fig. 10: %s, %d machines", row.file, k)
			reports, err := judgeThose(ctx, g, k, names)
			if err != nil {
				return fmt.Errorf("%s: %w", row.file, err)
			}
			cells := []string{fmt.Sprint(k)}
			for i, r := range reports {
				cells = append(cells, fmt.Sprintf("%.1f", r.Improvement()))
				panel.Lines[i].Points = append(panel.Lines[i].Points, plotter.XY{X: float64(k), Y: r.Improvement()})
			}
			t.addRow(cells...)
			panel.Ticks = append(panel.Ticks, float64(k))
		}
		if err := t.write(e.out); err != nil {
			return err
		}
		panels = append(panels, panel)
		// The paper's claim is about the growth from 8 machines on.
		cells, eight := []string{row.file}, slices.Index(counts, 8)
		for _, l := range panel.Lines {
			cells = append(cells, fmt.Sprintf("%.2f", l.Points[len(l.Points)-1].Y/l.Points[eight].Y))
		}
		drop.addRow(cells...)
	}
	if len(panels) == 0 {
		return nil
	}
	if err := drop.write(e.out); err != nil {
		return err
	}
	return e.writePanels("machines.png", panels)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/graphs"
)

// A paperRow is a line of DWW21's table 5 and the file that stands for its data set. The tests
// of planner/prerun say how the two differ.
type paperRow struct {
	file, standsFor string
	improvement     map[string]float64 // algorithm -> percent over random
	// quick are the algorithms that --quick tries; none: all.
	quick []string
}

// paperRows returns the lines of table 5.
func paperRows() []paperRow {
	return []paperRow{
		{"rcv1-excerpt", "rcv1.binary", map[string]float64{"tsh1": 109, "tsh2": 111, "mbp": 103}, nil},
		{"soc-slashdot", "soc-LiveJournal", map[string]float64{"tsh1": 175, "tsh2": 183, "mbp": 82}, []string{"random", "tsh1", "tsh2", "mbp"}},
		{"criteo-80k", "CTRa", map[string]float64{"tsh1": 906, "tsh2": 951, "mbp": 1371}, []string{"random", "tsh1", "tsh2", "mbp"}},
		{"news20-rebuilt", "news20", map[string]float64{"tsh1": 184, "tsh2": 193, "mbp": 175}, []string{"random", "tsh1"}},
	}
}

// table5 repeats table 5 of DWW21, k = 8, and adds what it does not have. Absent data sets are
// skipped; --quick leaves out what takes more than a minute.
func table5(ctx context.Context, e *evaluation) error {
	const k = 8
	sizes := table{title: "DWW21 table 4: sizes; the mean degree is that of a parameter, as the paper's of rcv1.binary is",
		head: []string{"data set", "samples", "parameters", "edges", "mean degree"}}
	for _, row := range paperRows() {
		path := filepath.Join(e.datasets, row.file+".libsvm.xz")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			e.progress("table 5: %s skipped, no file %s (--datasets names the folder)", row.file, path)
			continue
		}
		e.progress("table 5: %s", row.file)
		g, err := graphs.FromFile(ctx, path, dataset.Options{})
		if err != nil {
			return err
		}
		sizes.addRow(row.file, fmt.Sprint(g.Samples()), fmt.Sprint(g.Params()), fmt.Sprint(g.Edges()), fmt.Sprintf("%.1f", float64(g.Edges())/float64(g.Params())))
		names := prerun.AlgorithmNames()
		if e.quick && row.quick != nil {
			names = row.quick
		}
		reports, err := judgeThose(ctx, g, k, names)
		if err != nil {
			return fmt.Errorf("%s: %w", row.file, err)
		}
		t := table{
			title: fmt.Sprintf("DWW21 table 5: %s (%d samples, %d parameters, %d edges), k = %d; the paper's figures are of %s, other data",
				row.file, g.Samples(), g.Params(), g.Edges(), k, row.standsFor),
			head: []string{"algorithm", "over random, %", "the paper's, %", "max", "total", "max k / (2 total)", "seconds"},
		}
		for _, r := range reports {
			paper := "-"
			if percent, ok := row.improvement[r.Algorithm]; ok {
				paper = fmt.Sprintf("%.0f", percent)
			}
			t.addRow(display(r.Algorithm), fmt.Sprintf("%.1f", r.Improvement()), paper, fmt.Sprint(r.Traffic.Max),
				fmt.Sprint(r.Traffic.Total), fmt.Sprintf("%.3f", float64(r.Traffic.Max)/r.Bound), fmt.Sprintf("%.2f", r.Seconds))
		}
		if err := t.write(e.out); err != nil {
			return err
		}
	}
	if sizes.rows == nil {
		return nil
	}
	return sizes.write(e.out)
}

package main

import (
	"bytes"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/eval/report"
)

// TestMeasureSweep runs a sweep of small graphs: each algorithm has a column and a line, and
// those that look at the graph move less than random does.
func TestMeasureSweep(t *testing.T) {
	var out, log bytes.Buffer
	e := &evaluation{dir: t.TempDir(), out: &out, log: &log}
	s := fig8()
	s.values = []float64{2, 8}
	p, err := s.measure(t.Context(), e, density{"medium", 0.98}, 200, 2)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(prerun.AllAlgorithms()) - 1; len(p.Lines) != want {
		t.Fatalf("%d lines for random and %d other algorithms", len(p.Lines), want)
	}
	for _, l := range p.Lines {
		if !strings.Contains(out.String(), " "+l.Name+" |") {
			t.Errorf("no column %s in\n%s", l.Name, out.String())
		}
		for i, point := range l.Points {
			if point.X != s.values[i] || point.Y <= 0 {
				t.Errorf("%s at k = %g: %.1f%% over random", l.Name, point.X, point.Y)
			}
		}
	}
	if rows := strings.Count(out.String(), "\n| "); rows != 1+len(s.values) {
		t.Errorf("%d lines in a table of %d rows:\n%s", rows, len(s.values), out.String())
	}
}

// TestWritePlot: each panel makes a plot wider by the same.
func TestWritePlot(t *testing.T) {
	var out bytes.Buffer
	e := &evaluation{dir: t.TempDir(), out: &out}
	p := report.Panel{Title: "a", X: "x", Y: "y", LogX: true, LogY: true, Ticks: []float64{1, 10},
		Lines: []report.Line{{Name: "one", Points: plotter.XYs{{X: 1, Y: 3}, {X: 10, Y: 30}}}}}
	width := func(panels int) int {
		t.Helper()
		draw := func(w io.Writer) error { return report.WriteFigure(w, slices.Repeat([]report.Panel{p}, panels)) }
		if err := e.writePlot("plot.png", draw); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(filepath.Join(e.dir, "plot.png"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		image, err := png.DecodeConfig(f)
		if err != nil {
			t.Fatal(err)
		}
		return image.Width
	}
	if one, two, three := width(1), width(2), width(3); two <= one || three-two != two-one {
		t.Errorf("one panel is %d pixels wide, two %d, three %d", one, two, three)
	}
}

// TestBadFlags: errors name the flag or folder at fault.
func TestBadFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--what fig7", `"fig7": want sweeps`},
		{"sweeps", `argument "sweeps"`},
		{"--what table5 --out /dev/null/x", "/dev/null"},
	} {
		err := run(t.Context(), strings.Fields(tc.args), &bytes.Buffer{}, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.args, err, tc.want)
		}
	}
}

// TestTable5WithoutData: absent files are named, and no table is printed.
func TestTable5WithoutData(t *testing.T) {
	var out, log bytes.Buffer
	args := []string{"--what", "table5", "--out", t.TempDir(), "--datasets", t.TempDir()}
	if err := run(t.Context(), args, &out, &log); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "skipped, no file"); n != len(paperRows()) || out.Len() != 0 {
		t.Errorf("%d skipped, tables %q, log\n%s", n, out.String(), log.String())
	}
}

// TestWritePanels: panels are drawn as an SVG too, which has their words as text.
func TestWritePanels(t *testing.T) {
	e := &evaluation{dir: t.TempDir(), out: io.Discard}
	if err := e.writePanels("two.png", []report.Panel{{Title: "apples", X: "weeks", Y: "kilos", Lines: []report.Line{{Name: "one", Points: plotter.XYs{{X: 1, Y: 3}, {X: 10, Y: 30}}}}}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(e.dir, "two.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "apples", "weeks", "kilos", "one", "</svg>"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the SVG has no %q", want)
		}
	}
	if _, err := os.Stat(filepath.Join(e.dir, "two.png")); err != nil {
		t.Error(err)
	}
}

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/algorithm"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/figure"
)

// A density is one of DWW21's synthetic sets: every pair of a sample and a
// parameter is an edge with probability 1 - sparsity (section 6.1).
type density struct {
	name     string
	sparsity float64
}

func densities() []density {
	return []density{{"sparse", 0.999}, {"medium", 0.995}, {"dense", 0.991}}
}

// A sweep is one of the figures: a quantity that varies, all else being equal.
type sweep struct {
	file, title, x string
	logX           bool
	values         []float64
	at             func(x float64, params int) (samples, k int)
}

// fig8 varies the number of machines, fig9 the number of samples at as many
// machines as DWW21's table 5 has.
func fig8() sweep {
	return sweep{
		"fig8.png", "DWW21 Fig. 8: number of machines, n = m", "machines k", true,
		[]float64{2, 4, 8, 16, 32, 64},
		func(x float64, params int) (int, int) { return params, int(x) },
	}
}

func fig9() sweep {
	const k = 8
	return sweep{
		"fig9.png", "DWW21 Fig. 9: samples for each parameter, k = 8", "samples / parameters n/m", false,
		[]float64{0.5, 0.75, 1, 1.5, 2},
		func(x float64, params int) (int, int) { return int(math.Round(x * float64(params))), k },
	}
}

// sweeps repeats figures 8 and 9 of DWW21 with graphs of 2,000 parameters, which
// takes a minute or two on two cores, or with --full of 10,000, as its sparse set
// has by its mean degree of 10. --quick has 1,000, and the ends and the middle of
// each sweep. At one sparsity, fewer parameters mean smaller degrees, and so more
// to gain.
func sweeps(ctx context.Context, e *evaluation) error {
	params := 2_000
	switch {
	case e.quick:
		params = 1_000
	case e.full:
		params = 10_000
	}
	for _, s := range []sweep{fig8(), fig9()} {
		if e.quick {
			n := len(s.values)
			s.values = []float64{s.values[0], s.values[n/2], s.values[n-1]}
		}
		var panels []figure.Panel
		for _, d := range densities() {
			p, err := s.measure(ctx, e, d, params)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", s.title, d.name, err)
			}
			panels = append(panels, *p)
		}
		draw := func(w io.Writer) error { return figure.Write(w, panels) }
		if err := e.writePlot(s.file, draw); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the sweep on one density, prints its table and returns the
// panel.
func (s *sweep) measure(ctx context.Context, e *evaluation, d density, params int) (*figure.Panel, error) {
	began := time.Now()
	p := &figure.Panel{
		Title: fmt.Sprintf("%s: sparsity %g, m = %d", d.name, d.sparsity, params),
		X:     s.x, Y: "improvement of max over random (%)", LogX: s.logX, Ticks: s.values,
	}
	t := table{
		title: fmt.Sprintf("%s; %s, sparsity %g, m = %d. Improvement of the busiest machine over random in %%, (its traffic in parameters a step)",
			s.title, d.name, d.sparsity, params),
		head: []string{s.x},
	}
	for i, al := range algorithm.All() {
		p.Lines = append(p.Lines, figure.Line{Name: display(al.Name), Colour: i + 1})
		t.head = append(t.head, display(al.Name))
	}
	t.head = append(t.head, "best: max k / (2 total)")
	for _, x := range s.values {
		samples, k := s.at(x, params)
		e.progress("%s, %s: %g", s.title, d.name, x)
		g, err := graph.Random{Samples: samples, Params: params, Degree: (1 - d.sparsity) * float64(params), Seed: 1}.Build(ctx)
		if err != nil {
			return nil, err
		}
		reports, err := judgeAll(ctx, g, k)
		if err != nil {
			return nil, err
		}
		row := []string{fmt.Sprintf("%g", x)}
		for i, r := range reports {
			row = append(row, fmt.Sprintf("%.1f (%d)", r.Improvement(), r.Traffic.Max))
			p.Lines[i].Points = append(p.Lines[i].Points, plotter.XY{X: x, Y: r.Improvement()})
		}
		last := reports[len(reports)-1]
		t.add(append(row, fmt.Sprintf("%.3f", float64(last.Traffic.Max)/last.Bound))...)
	}
	e.progress("  %.0f s", time.Since(began).Seconds())
	return p, t.write(e.out)
}

// judgeAll partitions g among k machines by every algorithm.
func judgeAll(ctx context.Context, g *graph.Graph, k int) ([]*prerun.Report, error) {
	o := partition.Options{K: k, Seed: 1}
	random, err := prerun.RandomBaseline(ctx, g, o)
	if err != nil {
		return nil, err
	}
	var reports []*prerun.Report
	for _, al := range algorithm.All() {
		a, took, err := prerun.Run(ctx, g, al, o)
		if err != nil {
			return nil, err
		}
		r := prerun.Judge(g, a, o, random)
		r.Algorithm, r.Seconds = al.Name, took.Seconds()
		reports = append(reports, r)
	}
	return reports, nil
}

// display returns an algorithm's name as the papers write it.
func display(name string) string {
	papers := map[string]string{"tsh1": "TSH-1", "tsh2": "TSH-2", "mbp": "MBP", "dppa": "DPPA"}
	if paper, ok := papers[name]; ok {
		return paper
	}
	return name
}

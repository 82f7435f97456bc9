package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/eval/report"
	"github.com/psidecar/psidecar/test/graphs"
)

// A density is one of DWW21's synthetic sets: every pair of a sample and a parameter is an edge
// with probability 1 - sparsity (section 6.1).
type density struct {
	name     string
	sparsity float64
}

// densities returns the paper's three sets.
func densities() []density {
	return []density{{"sparse", 0.999}, {"medium", 0.995}, {"dense", 0.991}}
}

// A sweep is one of the figures: a quantity x that varies, all else being equal. at returns the
// numbers of samples and machines at an x.
type sweep struct {
	file, title, x string
	logX           bool
	values         []float64
	at             func(x float64, params int) (samples, k int)
}

// fig8 returns the sweep over the number of machines.
func fig8() sweep {
	return sweep{
		"fig8.png", "DWW21 Fig. 8: number of machines, n = m", "machines k", true,
		[]float64{2, 4, 8, 16, 32, 64},
		func(x float64, params int) (int, int) { return params, int(x) },
	}
}

// fig9 returns the sweep over the number of samples, at as many machines as DWW21's table 5
// has.
func fig9() sweep {
	const k = 8
	return sweep{
		"fig9.png", "DWW21 Fig. 9: samples for each parameter, k = 8", "samples / parameters n/m", false,
		[]float64{0.5, 0.75, 1, 1.5, 2},
		func(x float64, params int) (int, int) { return int(math.Round(x * float64(params))), k },
	}
}

// sweeps repeats figures 8 and 9 of DWW21 with graphs of 1,000 parameters: at
// that size TSH-1 gains over random what the paper's text says of its dense set,
// 13.0 to 90.6% from 2 to 64 machines. (Its table 4 says 10,000, and degrees that
// do not go with its sparsities. At one sparsity, fewer parameters mean smaller
// degrees, and so more to gain.) --full has 10,000 parameters, and one graph for
// each point instead of three; --quick one, and the ends and the middle of each
// sweep.
func sweeps(ctx context.Context, e *evaluation) error {
	params, count := 1_000, 3
	switch {
	case e.quick:
		count = 1
	case e.full:
		params, count = 10_000, 1
	}
	for _, s := range []sweep{fig8(), fig9()} {
		if e.quick {
			n := len(s.values)
			s.values = []float64{s.values[0], s.values[n/2], s.values[n-1]}
		}
		var panels []report.Panel
		for _, d := range densities() {
			p, err := s.measure(ctx, e, d, params, count)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", s.title, d.name, err)
			}
			panels = append(panels, *p)
		}
		if err := e.writePanels(s.file, panels); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the sweep on one density, each point as the mean over so many graphs, prints its
// table and returns the panel. The panel leaves random out, as random is its axis.
func (s *sweep) measure(ctx context.Context, e *evaluation, d density, params, count int) (*report.Panel, error) {
	began := time.Now()
	p := &report.Panel{
		Title: fmt.Sprintf("%s: sparsity %g, m = %d", d.name, d.sparsity, params),
		X:     s.x, Y: "improvement of max over random (%)", LogX: s.logX, Ticks: s.values, Gain: true,
	}
	t := table{
		title: fmt.Sprintf("%s; %s, sparsity %g, m = %d. Improvement of the busiest machine over random in %%, (its traffic in parameters a step), means of %d graphs",
			s.title, d.name, d.sparsity, params, count),
		head: []string{s.x, "random"},
	}
	for i, al := range prerun.AllAlgorithms()[1:] {
		p.Lines = append(p.Lines, report.Line{Name: display(al.Name), Colour: i + 2})
		t.head = append(t.head, display(al.Name))
	}
	t.head = append(t.head, "best: max k / (2 total)")
	for _, x := range s.values {
		samples, k := s.at(x, params)
		e.progress("%s, %s: %g", s.title, d.name, x)
		shape := graphs.Random{Samples: samples, Params: params, Degree: (1 - d.sparsity) * float64(params)}
		all, err := meansOf(ctx, shape, k, count)
		if err != nil {
			return nil, err
		}
		random := all[0].random
		row := []string{fmt.Sprintf("%g", x), fmt.Sprintf("(%.0f)", random)}
		for i, m := range all[1:] {
			row = append(row, fmt.Sprintf("%.1f (%.4g)", m.improvement(), m.max))
			if m.max > 0 { // where nothing is left to move, there is no point to draw
				p.Lines[i].Points = append(p.Lines[i].Points, plotter.XY{X: x, Y: m.improvement()})
			}
		}
		aboveBound := 1.0
		if last := all[len(all)-1]; last.bound > 0 {
			aboveBound = last.max / last.bound
		}
		t.addRow(append(row, fmt.Sprintf("%.3f", aboveBound))...)
	}
	e.progress("  %.0f s", time.Since(began).Seconds())
	return p, t.write(e.out)
}

// A means is what an algorithm, and random division, leave on some graphs in the mean.
type means struct{ max, bound, random float64 }

// improvement returns the improvement over random in percent, defined as in [prerun.Report].
func (m means) improvement() float64 { return (m.random/m.max - 1) * 100 }

// meansOf partitions graphs of one shape, with seeds from 1 on, by every algorithm.
func meansOf(ctx context.Context, shape graphs.Random, k, count int) ([]means, error) {
	all := make([]means, len(prerun.AllAlgorithms()))
	// Seeds are the same at each point, so that points differ by x alone as far as they can.
	for seed := range count {
		shape.Seed = uint64(seed) + 1
		g, err := shape.Build(ctx)
		if err != nil {
			return nil, err
		}
		reports, err := judgeAll(ctx, g, k)
		if err != nil {
			return nil, err
		}
		for i, r := range reports {
			all[i].max += float64(r.Traffic.Max) / float64(count)
			all[i].bound += r.Bound / float64(count)
			all[i].random += r.Random.Max / float64(count)
		}
	}
	return all, nil
}

// judgeAll partitions g among k machines by every algorithm.
func judgeAll(ctx context.Context, g *graph.Graph, k int) ([]*prerun.Report, error) {
	return judgeThose(ctx, g, k, prerun.AlgorithmNames())
}

// judgeThose partitions g among k machines by the algorithms of these names, in their order.
// All reports are against the same random division.
func judgeThose(ctx context.Context, g *graph.Graph, k int, names []string) ([]*prerun.Report, error) {
	o := partition.Options{K: k, Seed: 1}
	random, err := prerun.RandomBaseline(ctx, g, o)
	if err != nil {
		return nil, err
	}
	var reports []*prerun.Report
	for _, name := range names {
		al, err := prerun.FindAlgorithm(name)
		if err != nil {
			return nil, err
		}
		a, cost, err := prerun.Run(ctx, g, al, o)
		if err != nil {
			return nil, err
		}
		r := prerun.Judge(g, a, o, random)
		r.Algorithm, r.Seconds = al.Name, cost.Took().Seconds()
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

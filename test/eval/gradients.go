package main

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/codec/vector"
	"github.com/psidecar/psidecar/test/eval/report"
)

// A gradientWatch notes the threshold of one layer's gradient in each step of a worker, with
// what waited of the layer added, as the codec computes it with a life-span of 1. It only
// looks: what is pushed is the session's business.
type gradientWatch struct {
	sparsity float64
	waits    []float32 // values of the layer that no push has taken along
	selector vector.Selector
	taus     []float64 // of each step
}

// see takes the gradients of a step, group by group. A step that pushes no layer whole is
// skipped.
func (w *gradientWatch) see(groups []model.Group, grads [][]float32) {
	g, from, n := largestLayer(groups)
	if n == 0 {
		return
	}
	// The layer's size is known with the first step, and stays.
	if w.waits == nil {
		w.waits = make([]float32, n)
	}
	for i, v := range grads[g][from : from+n] {
		w.waits[i] += v
	}
	tau := w.selector.SelectFloat32(w.waits, w.sparsity)
	w.taus = append(w.taus, float64(tau))
	for i, v := range w.waits {
		if float32(math.Abs(float64(v))) >= tau {
			// What is at or above the threshold goes, and nothing of it waits.
			w.waits[i] = 0
		}
	}
}

// largestLayer returns the key with the most values of those that a step pushes whole: its
// group, and which of the group's values are its own. n is 0 if there is none.
func largestLayer(groups []model.Group) (group, from, n int) {
	for g := range groups {
		at := 0
		for _, values := range groups[g].Lens {
			if int(values) > n {
				group, from, n = g, at, int(values)
			}
			at += int(values)
		}
	}
	return group, from, n
}

// gradientsOverTime repeats DCT's figure 2: the threshold of a layer's gradient while a model
// trains, at each sparsity with the codec at work. The table is of the second half, since
// thresholds fall steeply at first.
func gradientsOverTime(ctx context.Context, e *evaluation) error {
	s, err := splitRecommender(e)
	if err != nil {
		return err
	}
	var variants []variant
	for _, eta := range sparsities {
		variants = append(variants, variant{name: fmt.Sprintf("%g%%", 100*eta), watched: eta,
			rules: []values.Rule{{Threshold: eta, LeastValues: values.DenseValues, Unpulled: true}}})
	}
	all, err := s.measure(ctx, e, 0, runtime.NumCPU(), variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("DCT Fig. 2: threshold of the largest layer's gradient, with what waited, %s, one worker, the second half of %d steps", s.name, e.steps(s)),
		head: []string{"sparsity", "mean threshold", "deviation, of the mean", "least, of the mean", "most, of the mean"}}
	panel := report.Panel{Title: "DCT Fig. 2: thresholds of a gradient", X: "step", Y: "threshold", LogY: true, Legend: true}
	for _, m := range all {
		taus := m.runs[0].taus
		half := taus[len(taus)/2:]
		mean, deviation := stat.MeanStdDev(half, nil)
		least, most := half[0], half[0]
		for _, tau := range half {
			least, most = min(least, tau), max(most, tau)
		}
		t.addRow(m.name, fmt.Sprintf("%.3g", mean), fmt.Sprintf("%.2f", deviation/mean), fmt.Sprintf("%.2f", least/mean), fmt.Sprintf("%.2f", most/mean))
		line := report.Line{Name: m.name}
		for i, tau := range taus {
			if tau > 0 { // the axis is a logarithm's
				line.Points = append(line.Points, plotter.XY{X: float64(i + 1), Y: tau})
			}
		}
		panel.Lines = append(panel.Lines, line)
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	return e.writePanels("gradients.png", []report.Panel{panel})
}

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/figure"
)

// slims compares Slim-DP with plain and quantized pushes at the end of as many
// steps, and varies what it explores (Slim table 1, figures 3 to 5, section
// 4.3.4). Slim chose alpha and epsilon among such; the core is chosen anew each
// round, which costs little here: its positions take under a bit a value.
func slims(ctx context.Context, e *evaluation) error {
	s := pictures(e)
	slim := func(alpha, epsilon float64, rounds int) variant {
		return variant{fmt.Sprintf("slim (%g, %g), q = %d", alpha, epsilon, rounds), []values.Rule{{Slim: &values.Slim{Alpha: alpha, Epsilon: epsilon, Rounds: rounds}}}}
	}
	both := slim(0.4, 0.2, 1)
	both.name += ", 8 bit"
	both.rules[0].Quantize = 8
	variants := []variant{{name: "plain"}, {"quantized, 8 bit", []values.Rule{{Quantize: 8}}},
		slim(0.4, 0.2, 1), slim(0.4, 0.4, 1), slim(0.4, 0, 1), slim(0.4, 0.2, 20), slim(0.3, 0.15, 1), both,
		{"threshold 99%", []values.Rule{{Threshold: 0.99}}}}
	all, err := s.measure(ctx, e, 250, runtime.NumCPU(), variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("%s (%d workers, %d seeds, %d steps; differences to plain with the same seed; pulls as a worker sees them)", s.name, workers, e.seeds(), e.steps(s)),
		head: []string{"codec", "test accuracy %", "against plain", "test loss", "pushes", "pulls", "bytes saved %"}}
	var curves []figure.Line
	for i := range all {
		m := &all[i]
		saved, _ := m.spread(func(r *result) float64 {
			return 100 * (1 - float64(r.pushed.encoded+r.pulled.encoded)/float64(r.pushed.plain+r.pulled.plain))
		})
		pulls, _ := m.spread(func(r *result) float64 { return r.pulled.ratio() })
		t.add(m.name, m.cell("%.2f", testAccuracy), m.against(&all[0], "%+.2f", testAccuracy), m.cell("%.4f", testLoss), fmt.Sprintf("1/%.1f", m.ratio()), fmt.Sprintf("1/%.2f", pulls), fmt.Sprintf("%.1f", saved))
		curve := figure.Line{Name: m.name}
		for k, at := range m.runs[0].curve {
			y, _ := m.spread(func(r *result) float64 { return 100 * r.curve[k].tally.Accuracy() })
			curve.Points = append(curve.Points, plotter.XY{X: float64(at.step), Y: y})
		}
		curves = append(curves, curve)
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	return e.writePlot("slim.png", func(w io.Writer) error {
		return figure.Write(w, []figure.Panel{
			{Title: "Slim Fig. 4: exploration and exploitation", X: "step", Y: "test accuracy %", Lines: []figure.Line{curves[0], curves[2], curves[3], curves[4]}, Floor: 90},
			{Title: "Slim Fig. 3 and 5: codecs", X: "step", Y: "test accuracy %", Lines: []figure.Line{curves[0], curves[1], curves[2], curves[5], curves[6], curves[8]}, Floor: 90, Legend: true},
		})
	})
}

package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/psidecar/psidecar/proxy/codec/values"
)

// pulls compares pulls with error feedback (EF21-P), alone and beside thresholded pushes, with
// plain ones, on a server that changes every value in each step: what the servers' model is
// worth at the end, what a worker sees of it, and the bytes of each direction.
func pulls(ctx context.Context, e *evaluation) error {
	s := heavy(e)
	variants := []variant{{name: "plain"}, {name: "wire bf16", rules: []values.Rule{{Wire: "bf16"}}}, {name: "unchanged", rules: []values.Rule{{Unchanged: true}}}}
	for _, v := range []variant{
		{name: "pull-threshold 0.95", rules: []values.Rule{{PullThreshold: 0.95}}},
		{name: "pull-quantize 4", rules: []values.Rule{{PullQuantize: 4}}},
		{name: "threshold 0.99", rules: []values.Rule{{Threshold: 0.99}}},
		{name: "threshold auto, pull-threshold 0.95", rules: []values.Rule{{Threshold: values.AutoThreshold, Auto: true, PullThreshold: 0.95}}},
		{name: "threshold 0.99, pull-threshold 0.95", rules: []values.Rule{{Threshold: 0.99, PullThreshold: 0.95}}},
		{name: "the same, wire bf16", rules: []values.Rule{{Threshold: 0.99, PullThreshold: 0.95, Wire: "bf16"}}},
		{name: "threshold 0.99, pull-quantize 4", rules: []values.Rule{{Threshold: 0.99, PullQuantize: 4}}},
		{name: "threshold 0.99, quantize 8, pull-quantize 4", rules: []values.Rule{{Threshold: 0.99, Quantize: 8, PullQuantize: 4}}},
		{name: "threshold 0.99, pull-quantize 2", rules: []values.Rule{{Threshold: 0.99, PullQuantize: 2, QuantizeBucket: 64}}},
	} {
		// Workers of a session push no initial values, so every push is a gradient.
		v.rules[0].Unpulled = true
		variants = append(variants, v)
	}
	all, err := s.measure(ctx, e, 0, runtime.NumCPU(), variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("%s (%d workers, %d seeds, %d steps; mean ± standard deviation; differences to plain with the same seed)", s.name, workers, e.seeds(), e.steps(s)),
		head: []string{"codec", "test accuracy % of the servers' model", "against plain", "of a worker's", "against plain", "train loss", "pushes", "pulls", "both"}}
	for i := range all {
		m := &all[i]
		pulled, _ := m.spread(func(r *result) float64 { return r.pulled.ratio() })
		both, _ := m.spread(func(r *result) float64 {
			return traffic{r.pushed.plain + r.pulled.plain, r.pushed.encoded + r.pulled.encoded}.ratio()
		})
		t.addRow(m.name, m.cell("%.2f", lastAccuracy), m.against(&all[0], "%+.2f", lastAccuracy), m.cell("%.2f", testAccuracy), m.against(&all[0], "%+.2f", testAccuracy),
			m.cell("%.4f", trainLoss), fmt.Sprintf("1/%.1f", m.ratio()), fmt.Sprintf("1/%.1f", pulled), fmt.Sprintf("1/%.1f", both))
	}
	return t.write(e.out)
}

package main

import (
	"context"
	"fmt"
	"runtime"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/eval/report"
)

// sparsities are those of DCT's table 2.
var sparsities = []float64{0.75, 0.9, 0.95, 0.98, 0.995}

// atSparsities returns variants without a codec and with a threshold at each of the sparsities,
// for keys of at least so many values, and with one that is chosen as training goes on.
func atSparsities(least int) []variant {
	variants := []variant{{name: "none"}}
	for _, eta := range sparsities {
		variants = append(variants, variant{name: fmt.Sprintf("%g%%", 100*eta), rules: []values.Rule{{Threshold: eta, LeastValues: least, Unpulled: true}}})
	}
	variants = append(variants, variant{name: "auto", rules: []values.Rule{{Threshold: values.AutoThreshold, Auto: true, LeastValues: least, Unpulled: true}}})
	return variants
}

// thresholds repeats DCT's table 2: train and test loss and accuracy by sparsity, for the dense
// layers alone, as there, and for all layers. Logistic regression learns by plain gradients, as
// DCT's network does, and by FTRL, whose steps depend on the squares of what is pushed: of
// several gradients that were summed while they waited these are other squares.
func thresholds(ctx context.Context, e *evaluation) error {
	rec, err := recommender(e, "small", small)
	if err != nil {
		return err
	}
	lr80k, err := regression(e, "criteo-80k.libsvm.xz", 2000, 64, kv.StoreSettings{Rule: "sgd", LearningRate: 30})
	if err != nil {
		return err
	}
	rcv1, err := regression(e, "rcv1-excerpt.libsvm.xz", 1500, 32, kv.StoreSettings{Rule: "sgd", LearningRate: 100})
	if err != nil {
		return err
	}
	// The same rows as above, so that only the rule of the server differs.
	ftrl, err := regression(e, "rcv1-excerpt.libsvm.xz", 1500, 32, kv.StoreSettings{Rule: "ftrl", LearningRate: 1, Beta: 0.01})
	if err != nil {
		return err
	}
	warm := append(atSparsities(0), variant{name: "98%, warm-up 300", rules: []values.Rule{{Threshold: 0.98, Warmup: 300, Unpulled: true}}})
	panels := []report.Panel{
		{Title: "DCT Table 2: what a threshold costs", Y: "test loss against none, at the last step"},
		{Title: "The same once all that waits is sent", Y: "test loss against none"},
	}
	for _, c := range []struct {
		*subject
		title    string
		variants []variant
	}{{rec, ", dense layers", atSparsities(values.DenseValues)}, {rec, ", all layers", atSparsities(0)}, {lr80k, "", atSparsities(0)}, {rcv1, "", atSparsities(0)}, {ftrl, "", warm}} {
		all, err := c.measure(ctx, e, 0, runtime.NumCPU(), c.variants)
		if err != nil {
			return err
		}
		name := c.name + c.title
		if err := writeThresholds(e, c.subject, name, all); err != nil {
			return err
		}
		panels[0].Lines = append(panels[0].Lines, bySparsity(name, all, testLoss))
		panels[1].Lines = append(panels[1].Lines, bySparsity(name, all, lastLoss))
	}
	for i := range panels {
		panels[i].X, panels[i].LogX, panels[i].Ticks = "values that go %", true, []float64{0.5, 2, 5, 10, 25}
	}
	return e.writePanels("threshold.png", panels)
}

// bySparsity returns a line of what is lost against none, by the share of values that go in
// percent. all begins with none and has the sparsities in order.
func bySparsity(name string, all []measured, of func(*result) float64) report.Line {
	l := report.Line{Name: name}
	// The mean over seeds; the spread is in the table.
	none, _ := all[0].spread(of)
	for i, eta := range sparsities {
		mean, _ := all[i+1].spread(of)
		l.Points = append(l.Points, plotter.XY{X: 100 * (1 - eta), Y: mean - none})
	}
	return l
}

// writeThresholds writes the table of a subject.
func writeThresholds(e *evaluation, s *subject, name string, all []measured) error {
	t := table{title: fmt.Sprintf("%s (%d workers, %d seeds, %d steps; mean ± standard deviation; differences to none with the same seed; bytes with meta and keys)", name, workers, e.seeds(), e.steps(s)),
		head: []string{"sparsity", "train loss", "test loss", "test accuracy %", "against none", "once all is sent", "against none", "of all values go %", "bytes of pushes"}}
	for i := range all {
		m := &all[i]
		sent, _ := m.spread(func(r *result) float64 { return 100 * r.sent })
		t.addRow(m.name, m.cell("%.4f", trainLoss), m.cell("%.4f", testLoss), m.cell("%.2f", testAccuracy), m.against(&all[0], "%+.4f", testLoss),
			m.cell("%.4f", lastLoss), m.against(&all[0], "%+.4f", lastLoss), fmt.Sprintf("%.3f", sent), fmt.Sprintf("1/%.1f", m.ratio()))
	}
	return t.write(e.out)
}

// lifespans repeats DCT's figure 7 a and b: what a threshold's life-span costs in time and
// loss, at 95%. Runs are one at a time, as their times are compared.
func lifespans(ctx context.Context, e *evaluation) error {
	rec, err := recommender(e, "large", large)
	if err != nil {
		return err
	}
	variants := []variant{{name: "none"}}
	spans := []int{1, 10, 100, 1000}
	for _, l := range spans {
		variants = append(variants, variant{name: fmt.Sprint(l), rules: []values.Rule{{Threshold: 0.95, Lifespan: l, Unpulled: true}}})
	}
	// One at a time, since the codec's time is measured.
	all, err := rec.measure(ctx, e, 0, 1, variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("Life-span of a threshold, %s, sparsity 95%% (DCT Fig. 7 a, b; time is that of the codec, both ends, of all pushes)", rec.name),
		head: []string{"L", "codec ms a step", "ns a value", "train loss", "test loss", "bytes of pushes"}}
	var cost, loss report.Line
	cost.Name, loss.Name = "threshold 95%", "threshold 95%"
	none, _ := all[0].spread(testLoss)
	for i := range all {
		m := &all[i]
		steps := float64(e.steps(rec))
		ms, _ := m.spread(func(r *result) float64 { return 1e3 * r.codec.Seconds() / steps })
		// Values are float32, hence the 4.
		ns, _ := m.spread(func(r *result) float64 { return 1e9 * r.codec.Seconds() / (float64(r.pushed.plain) / 4) })
		t.addRow(m.name, fmt.Sprintf("%.2f", ms), fmt.Sprintf("%.1f", ns), m.cell("%.4f", trainLoss),
			m.cell("%.4f", testLoss), fmt.Sprintf("1/%.1f", m.ratio()))
		if i > 0 {
			mean, _ := m.spread(testLoss)
			cost.Points = append(cost.Points, plotter.XY{X: float64(spans[i-1]), Y: ms})
			loss.Points = append(loss.Points, plotter.XY{X: float64(spans[i-1]), Y: mean - none})
		}
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	ticks := []float64{1, 10, 100, 1000}
	return e.writePanels("lifespan.png", []report.Panel{
		{Title: "DCT Fig. 7 a: time of the codec", X: "life-span L", Y: "ms a step", LogX: true, Ticks: ticks, Lines: []report.Line{cost}},
		{Title: "DCT Fig. 7 b: loss", X: "life-span L", Y: "test loss against none", LogX: true, Ticks: ticks, Lines: []report.Line{loss}},
	})
}

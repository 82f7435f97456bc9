package main

import (
	"context"
	"fmt"
	"runtime"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/eval/report"
)

// recommenderSplits are where the recommender is split: after two layers of the bottom net,
// with two splits, as the paper has them, after two of the top net as well, and with four after
// one of each too.
// The recommender's splits: after two layers of the bottom net, with the paper's two
// after two of the top net as well, and with four after one of each too.
var recommenderSplits = []place{{0, 2}, {1, 2}, {0, 1}, {1, 1}}

// fixedSparsities are the sparsities of DCT's figure 5.
var fixedSparsities = []float64{0.75, 0.9, 0.95}

// published is what a paper prints for a variant: the test loss, and its difference to that
// without a codec.
type published struct{ loss, against float64 }

// splitVariants returns a model in one piece and then, for each number of splits, one variant
// for each of its sparsities. rules gives the rules for gradients at a sparsity.
func splitVariants(places []place, sparsities map[int][]float64, rules func(eta float64) []values.Rule) []variant {
	all := []variant{{name: "none"}}
	for _, n := range []int{1, 2, 4} {
		for _, eta := range sparsities[n] {
			all = append(all, variant{name: fmt.Sprintf("%g%%, %s", 100*eta, plural(n, "split")), rules: rules(eta), split: splitAt(eta, nil, places[:n]...)})
		}
	}
	return all
}

// plural returns a count with its noun.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// splitRecommender returns the recommender that is split: with nets of half of DLRM's own
// units, or with --full, which takes four times as long, with all.
func splitRecommender(e *evaluation) (*subject, error) {
	if e.full {
		return recommender(e, "large", large)
	}
	return recommender(e, "medium", medium)
}

// activations repeats DCT's tables 1 and 3: parts of a recommender exchange activations and
// gradients for them, of which only the largest of each row go. Both tables share one
// measurement, so that their rows without a codec are the same runs.
func activations(ctx context.Context, e *evaluation) error {
	rec, err := splitRecommender(e)
	if err != nil {
		return err
	}
	variants := splitVariants(recommenderSplits, map[int][]float64{1: {0.75, 0.9, 0.95, 0.98}, 2: {0.75, 0.9, 0.95}, 4: {0.75, 0.9, 0.95}},
		func(float64) []values.Rule { return nil })
	// Variants from here on are of table 3.
	n := len(variants)
	dense := func(eta float64) []values.Rule {
		return []values.Rule{{Threshold: eta, LeastValues: values.DenseValues, Unpulled: true}}
	}
	for _, both := range [][2]float64{{0.75, 0.75}, {0.9, 0.9}, {0.95, 0.95}, {0.98, 0.9}} {
		variants = append(variants, variant{name: fmt.Sprintf("gradients %g%%, activations %g%%", 100*both[0], 100*both[1]), rules: dense(both[0]), split: splitAt(both[1], nil, recommenderSplits[:2]...)})
	}
	all, err := rec.measure(ctx, e, 0, runtime.NumCPU(), variants)
	if err != nil {
		return err
	}
	one := map[string]published{"none": {0.4538, 0}, "75%, 1 split": {0.4532, -0.0006}, "90%, 1 split": {0.4530, -0.0008}, "95%, 1 split": {0.4534, -0.0004},
		"98%, 1 split": {0.4562, 0.0024}, "75%, 2 splits": {0.4536, -0.0002}, "90%, 2 splits": {0.4537, -0.0001}, "95%, 2 splits": {0.4546, 0.0008}}
	if err := writeSplits(e, "DCT Table 1", rec, all[:n], one); err != nil {
		return err
	}
	three := map[string]published{"none": {0.4538, 0}, variants[n].name: {0.4535, -0.0003}, variants[n+1].name: {0.4537, -0.0001}, variants[n+2].name: {0.4548, 0.0010}}
	return writeSplits(e, "DCT Table 3, two splits", rec, append(all[:1:1], all[n:]...), three)
}

// writeSplits writes a table of variants beside what the paper prints for them, by name. The
// first of all is the one without a codec.
func writeSplits(e *evaluation, title string, s *subject, all []measured, paper map[string]published) error {
	t := table{title: fmt.Sprintf("%s: %s (%d workers, %d seeds, %d steps; mean ± standard deviation; differences to none with the same seed; tests with the thresholds in)", title, s.name, workers, e.seeds(), e.steps(s)),
		head: []string{"sparsity", "train loss", "test loss", "test accuracy %", "against none", "the paper's test loss", "against none", "activations", "gradients for them", "pushes"}}
	for i := range all {
		m := &all[i]
		cells := []string{m.name, m.cell("%.4f", trainLoss), m.cell("%.4f", testLoss), m.cell("%.2f", testAccuracy), m.against(&all[0], "%+.4f", testLoss), "", ""}
		if p, ok := paper[m.name]; ok {
			cells[5], cells[6] = fmt.Sprintf("%.4g", p.loss), fmt.Sprintf("%+.4f", p.against)
		}
		t.addRow(append(append(cells, m.exchanged()...), fmt.Sprintf("1/%.1f", m.ratio()))...)
	}
	return t.write(e.out)
}

// exchanged returns two cells, by how much activations and gradients for them became smaller;
// empty if the model was in one piece.
func (m *measured) exchanged() []string {
	if m.runs[0].splits == nil {
		return []string{"", ""}
	}
	forward, _ := m.spread(func(r *result) float64 { return r.splits.forward.ratio() })
	back, _ := m.spread(func(r *result) float64 { return r.splits.back.ratio() })
	return []string{fmt.Sprintf("1/%.1f", forward), fmt.Sprintf("1/%.1f", back)}
}

// overTime repeats figure 5: the mean threshold of the rows behind a layer while a model
// trains, where activations go whole and where the smallest do not go. Runs with whole
// activations only look at thresholds, at all sparsities at once.
func overTime(ctx context.Context, e *evaluation) error {
	s, err := splitRecommender(e)
	if err != nil {
		return err
	}
	at := recommenderSplits[:1]
	variants := []variant{{name: "whole", split: splitAt(0, fixedSparsities, at...)}}
	for _, eta := range fixedSparsities {
		variants = append(variants, variant{name: fmt.Sprintf("DCT-MP %g%%", 100*eta), split: splitAt(eta, []float64{eta}, at...)})
	}
	all, err := s.measure(ctx, e, 0, runtime.NumCPU(), variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("DCT Fig. 5: mean threshold of the rows behind the bottom net's second layer, %s, first and last tenth of %d steps", s.name, e.steps(s)),
		head: []string{"sparsity", "whole, first", "whole, last", "DCT-MP, first", "DCT-MP, last", "last, of whole"}}
	panel := report.Panel{Title: "DCT Fig. 5: thresholds while training", X: "step", Y: "mean threshold", Legend: true}
	for i, eta := range fixedSparsities {
		whole, cut := tenths(all[0].runs, i), tenths(all[i+1].runs, 0)
		t.addRow(fmt.Sprintf("%g%%", 100*eta), fmt.Sprintf("%.4f", whole[0]), fmt.Sprintf("%.4f", whole[9]), fmt.Sprintf("%.4f", cut[0]), fmt.Sprintf("%.4f", cut[9]), fmt.Sprintf("%.2f", cut[9]/whole[9]))
		for _, l := range []struct {
			name   string
			points [10]float64
		}{{fmt.Sprintf("%g%%, whole", 100*eta), whole}, {fmt.Sprintf("%g%%, DCT-MP", 100*eta), cut}} {
			line := report.Line{Name: l.name}
			for k, y := range l.points {
				line.Points = append(line.Points, plotter.XY{X: float64(e.steps(s)) * (float64(k) + 0.5) / 10, Y: y})
			}
			panel.Lines = append(panel.Lines, line)
		}
	}
	if err := t.write(e.out); err != nil {
		return err
	}
	return e.writePanels("activations.png", []report.Panel{panel})
}

// tenths returns the means of a threshold in each tenth of the steps, over all runs. which is
// the place of its sparsity among those that were looked at.
func tenths(runs []*result, which int) (means [10]float64) {
	for _, r := range runs {
		n := len(r.splits.taus)
		for k := range means {
			part := r.splits.taus[n*k/10 : n*(k+1)/10]
			for _, taus := range part {
				means[k] += taus[which] / float64(len(part)*len(runs))
			}
		}
	}
	return means
}

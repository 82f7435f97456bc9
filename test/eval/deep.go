package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/eval/translate"
)

// translationSplits are behind the ReLU of a fully connected net: of the paper's six layers the
// fifth of the encoder, then of the decoder, then the third of both; of our two the second and
// the first.
var translationSplits = []place{{0, 2}, {1, 2}, {0, 1}, {1, 1}}

// translationPaper is DCT's table 4 by variant: the losses and the BLEU score.
var translationPaper = map[string]struct{ train, test, bleu float64 }{
	"none": {3.150, 3.883, 35.17}, "90%, 1 split": {3.159, 3.879, 35.23}, "95%, 1 split": {3.157, 3.882, 35.18},
	"90%, 2 splits": {3.151, 3.881, 35.22}, "95%, 2 splits": {3.148, 3.882, 35.19}, "90%, 4 splits": {3.157, 3.882, 35.20}, "95%, 4 splits": {3.188, 3.890, 35.15}}

// translation returns a small Transformer that learns to translate between languages that are
// made up.
func translation() *subject {
	const words, width, pairs = 31, 32, 10_000
	shape := translate.Shape{Width: width, Heads: 4, Inner: 256, Layers: 2}
	return &subject{
		name: fmt.Sprintf("Transformer of %d+%d layers of %d values and nets of %d units, %d pairs of sentences", shape.Layers, shape.Layers, width, shape.Inner, pairs*4/5), steps: 1200, quick: 250, batch: 8,
		settings: kv.StoreSettings{Rule: "adagrad", Synchronous: true, LearningRate: 0.01, Beta: 1e-6, ValueLength: width},
		load: func(_ context.Context, share model.Share, isTest bool, seed uint64) (model.Model, error) {
			// Every fifth pair is for the test, as lines of other sets are.
			var own []translate.Sentence
			n := 0
			for i, pair := range translate.SyntheticSentences(pairs, words, 1) {
				if (i%5 == 4) == isTest {
					if share.Has(n) {
						own = append(own, pair)
					}
					n++
				}
			}
			// The set and the model must place ids alike.
			spread := keys()
			set, err := translate.NewSentences(own, spread, words+1)
			if err != nil {
				return nil, err
			}
			return translate.New(set, shape, 1<<16, seed, spread.Key)
		},
	}
}

// deep repeats table 4: parts of a translation model exchange activations.
func deep(ctx context.Context, e *evaluation) error {
	s := translation()
	variants := splitVariants(translationSplits, map[int][]float64{1: {0.9, 0.95}, 2: {0.9, 0.95}, 4: {0.9, 0.95}}, func(float64) []values.Rule { return nil })
	all, err := s.measure(ctx, e, 0, runtime.NumCPU(), variants)
	if err != nil {
		return err
	}
	t := table{title: fmt.Sprintf("DCT Table 4: %s (%d workers, %d seeds, %d steps; mean ± standard deviation; differences to none with the same seed; tests with the thresholds in)", s.name, workers, e.seeds(), e.steps(s)),
		head: []string{"sparsity", "train loss", "test loss", "against none", "BLEU", "against none", "the paper's test loss", "against none", "BLEU", "against none", "activations", "gradients for them"}}
	none := translationPaper["none"]
	score := func(r *result) float64 { return r.bleu }
	for i := range all {
		m := &all[i]
		p := translationPaper[m.name]
		cells := []string{m.name, m.cell("%.4f", trainLoss), m.cell("%.4f", testLoss), m.against(&all[0], "%+.4f", testLoss), m.cell("%.2f", score), m.against(&all[0], "%+.2f", score),
			fmt.Sprintf("%.3f", p.test), fmt.Sprintf("%+.3f", p.test-none.test), fmt.Sprintf("%.2f", p.bleu), fmt.Sprintf("%+.2f", p.bleu-none.bleu)}
		t.addRow(append(cells, m.exchanged()...)...)
	}
	return t.write(e.out)
}

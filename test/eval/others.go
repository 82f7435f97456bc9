package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// A sketcher is a split behind which activations are what a Gaussian sketch leaves of them: x S
// S' for rows x, where S has only a share of as many columns as the rows have. Gradients go
// whole.
type sketcher struct {
	left float64 // share of the values that is left, above 0
	rng  *rand.Rand
	// width rows of random values, drawn for the first activations and kept
	s     []float32
	width int
}

// Forward implements [model.Splitter]: it replaces activations by their sketch, expanded again.
func (k *sketcher) Forward(activations []float32, width int) {
	r := max(int(math.Round(k.left*float64(width))), 1)
	if k.width != width {
		k.width, k.s = width, make([]float32, width*r)
		for i := range k.s {
			k.s[i] = float32(k.rng.NormFloat64() / math.Sqrt(float64(r)))
		}
	}
	short := make([]float32, r)
	for from := 0; from < len(activations); from += width {
		x := activations[from : from+width]
		clear(short)
		for i, v := range x {
			for j := range short {
				short[j] += v * k.s[i*r+j]
			}
		}
		for i := range x {
			x[i] = 0
			for j, v := range short {
				x[i] += v * k.s[i*r+j]
			}
		}
	}
}

// Backward implements [model.Splitter]. It leaves gradients as they are.
func (k *sketcher) Backward([]float32, int) {}

// A gradientCutter is a split behind which activations are whole. Of gradients for them only
// the largest of all rows go, with error feedback: what did not go is added to the gradients of
// the same place in the next step.
type gradientCutter struct {
	sparsity float64
	waits    []float32
	selector vector.Selector
}

// Forward implements [model.Splitter]. It leaves activations as they are.
func (c *gradientCutter) Forward([]float32, int) {}

// Backward implements [model.Splitter]: it replaces gradients by what goes of them.
func (c *gradientCutter) Backward(gradients []float32, _ int) {
	// Another batch size, at which places are others: what waited is lost.
	if len(c.waits) != len(gradients) {
		c.waits = make([]float32, len(gradients))
	}
	for i, v := range gradients {
		c.waits[i] += v
	}
	tau := c.selector.SelectFloat32(c.waits, c.sparsity)
	for i, v := range c.waits {
		gradients[i] = 0
		if float32(math.Abs(float64(v))) >= tau {
			gradients[i], c.waits[i] = v, 0
		}
	}
}

// splitBy returns a function that splits models behind the first of the recommender's places,
// each by a splitter of its own. It counts no traffic, since these codecs have no encoding.
func splitBy(splitter func() model.Splitter) func([]model.Model) *splits {
	return func(models []model.Model) *splits {
		for _, m := range models {
			at := recommenderSplits[0]
			// Each model gets a splitter of its own, whose state belongs to its worker.
			nets := [2]map[int]model.Splitter{{}, {}}
			nets[at.net][at.layer] = splitter()
			put(m, nets)
		}
		return nil
	}
}

// otherSplits repeats tables 6 and 7 of DCT, which show what does badly: activations by a
// Gaussian sketch, and top-k of the gradients for activations that go whole. psidecar has
// neither codec.
func otherSplits(ctx context.Context, e *evaluation) error {
	rec, err := splitRecommender(e)
	if err != nil {
		return err
	}
	variants := []variant{{name: "none"}}
	for _, eta := range []float64{0.5, 0.75, 0.9} {
		variants = append(variants, variant{name: fmt.Sprintf("sketch %g%%", 100*eta), split: splitBy(func() model.Splitter {
			return &sketcher{left: 1 - eta, rng: rand.New(rand.NewPCG(1, 1))}
		})})
	}
	for _, eta := range []float64{0.5, 0.75, 0.9} {
		variants = append(variants, variant{name: fmt.Sprintf("gradients %g%%", 100*eta), split: splitBy(func() model.Splitter { return &gradientCutter{sparsity: eta} })})
	}
	all, err := rec.measure(ctx, e, 0, runtime.NumCPU(), variants)
	if err != nil {
		return err
	}
	paper := []float64{0, 0.0080, 0.0118, 0.0183, 0.0023, 0.0050, 0.0251}
	for _, part := range []struct {
		title string
		rows  []int
	}{{"DCT Table 6: activations by a Gaussian sketch", []int{0, 1, 2, 3}}, {"DCT Table 7: top-k of gradients for activations, with error feedback", []int{0, 4, 5, 6}}} {
		t := table{title: fmt.Sprintf("%s, one split, %s (%d workers, %d seeds, %d steps; mean ± standard deviation; differences to none with the same seed)", part.title, rec.name, workers, e.seeds(), e.steps(rec)),
			head: []string{"codec", "train loss", "test loss", "against none", "the paper's"}}
		for _, i := range part.rows {
			m := &all[i]
			t.addRow(m.name, m.cell("%.4f", trainLoss), m.cell("%.4f", testLoss), m.against(&all[0], "%+.4f", testLoss), fmt.Sprintf("%+.4f", paper[i]))
		}
		if err := t.write(e.out); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"math"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/rows"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/eval/translate"
)

// splits is what went between the parts of a run's models, all workers together, in the
// encoding that the proxies have for activations, without keys and metas. Models of a session
// run one after the other, so it needs no lock.
type splits struct {
	forward, back traffic
	// taus are for each step of each worker the mean thresholds of its rows, at each
	// of the sparsities that are looked at, of the first split of the model.
	taus [][]float64
}

// splitter is one split of one model. A training step calls Forward and then Backward; scoring
// calls Forward alone.
type splitter struct {
	counts   *splits
	sparsity float64       // 0: nothing is left out
	looked   []float64     // sparsities whose thresholds are noted
	chooser  rows.Chooser  // of the proxies: which values of the rows go
	vector   sparse.Vector // what goes; its mask is kept for the gradients
	bytes    []byte        // the values as in a message
	pending  traffic       // of the last forward pass
	taus     []float64
}

// Forward implements [model.Splitter]: it leaves of the activations what a proxy at the other
// end would pass on. It counts nothing yet, since it does not know whether a step follows.
func (s *splitter) Forward(activations []float32, width int) {
	s.bytes = pslite.AppendFloat32(s.bytes[:0], activations)
	s.taus = nil
	for _, eta := range s.looked {
		s.choose(width, eta)
		s.taus = append(s.taus, s.chooser.Tau/math.Max(1, float64(s.chooser.Rows)))
	}
	s.pending = traffic{len(s.bytes), len(s.bytes)}
	if s.sparsity == 0 {
		return
	}
	s.choose(width, s.sparsity)
	s.pending.encoded = len(s.vector.Append(nil))
	s.vector.Expand(s.bytes)
	copy(activations, floats(s.bytes))
	// Runs within rows of which all values went are part of the mask as well.
	for _, o := range s.chooser.Open {
		s.vector.Mask.SetRun(o.From, o.To-o.From)
	}
}

// choose selects what goes of the values in s.bytes, row by row.
func (s *splitter) choose(width int, sparsity float64) {
	s.chooser.Begin(&s.vector, element.Float32, len(s.bytes)/4, sparsity)
	for at := 0; at < len(s.bytes); at += 4 * width {
		s.chooser.Add(s.bytes[at : at+4*width])
	}
}

// Backward implements [model.Splitter]. Gradients go where activations went, and need no
// positions of their own. Here the forward pass before it is counted, too.
func (s *splitter) Backward(gradients []float32, _ int) {
	s.counts.forward.plain += s.pending.plain
	s.counts.forward.encoded += s.pending.encoded
	if len(s.looked) > 0 {
		s.counts.taus = append(s.counts.taus, s.taus)
	}
	s.bytes = pslite.AppendFloat32(s.bytes[:0], gradients)
	s.counts.back.plain += len(s.bytes)
	if s.sparsity == 0 {
		s.counts.back.encoded += len(s.bytes)
		return
	}
	// The positions are those of the activations, which the receiver has.
	s.vector.At = s.vector.At[:0]
	s.vector.Gather(s.bytes)
	s.counts.back.encoded += len(s.vector.Append(nil))
	s.vector.Expand(s.bytes)
	copy(gradients, floats(s.bytes))
}

// place is a layer behind which a model is split. Net 0 is the only one of a model, the
// recommender's bottom net or the translation's encoder; net 1 is the top net or decoder.
// Layers count from 1.
type place struct{ net, layer int }

// splitAt returns a function that splits models at places, at a sparsity. looked are sparsities
// at which the thresholds of the first split are noted. All splits of all models add up in what
// the function returns.
func splitAt(sparsity float64, looked []float64, places ...place) func([]model.Model) *splits {
	return func(models []model.Model) *splits {
		counts := &splits{}
		for _, m := range models {
			nets := [2]map[int]model.Splitter{{}, {}}
			for i, p := range places {
				s := &splitter{counts: counts, sparsity: sparsity}
				if i == 0 {
					s.looked = looked
				}
				nets[p.net][p.layer] = s
			}
			put(m, nets)
		}
		return counts
	}
}

// put sets the splitters of a model, by layer of each net; none puts it together again. Models
// that cannot be split stay as they are.
func put(m model.Model, nets [2]map[int]model.Splitter) {
	switch m := m.(type) {
	case *model.Recommend:
		m.Split(nets[0], nets[1])
	case *translate.Model:
		m.Split(nets[0], nets[1])
	case *model.Image:
		m.Split(nets[0])
	}
}

// divide splits models as the variant has it, or puts them together again after another
// variant.
func (v *variant) divide(models []model.Model) *splits {
	if v.split != nil {
		return v.split(models)
	}
	for _, m := range models {
		put(m, [2]map[int]model.Splitter{})
	}
	return nil
}

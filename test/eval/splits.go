package main

import (
	"math"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/rows"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// splits is what went between the parts of a run's models, all workers together: the
// proxies' code for activations, without keys and metas.
type splits struct {
	forward, back traffic
	// taus are for each step of each worker the mean thresholds of its rows, at each
	// of the sparsities that are looked at, of the first split of the model.
	taus [][]float64
}

// splitter is one split of one model.
type splitter struct {
	counts   *splits
	sparsity float64   // 0: nothing is left out
	looked   []float64 // sparsities whose thresholds are noted
	chooser  rows.Chooser
	vector   sparse.Vector
	bytes    []byte
	pending  traffic // of the last forward pass
	taus     []float64
}

// Forward implements [model.Splitter].
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
	for _, o := range s.chooser.Open {
		s.vector.Mask.SetRun(o.From, o.To-o.From)
	}
}

func (s *splitter) choose(width int, sparsity float64) {
	s.chooser.Begin(&s.vector, element.Float32, len(s.bytes)/4, sparsity)
	for at := 0; at < len(s.bytes); at += 4 * width {
		s.chooser.Add(s.bytes[at : at+4*width])
	}
}

// Backward implements [model.Splitter].
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
	s.vector.At = s.vector.At[:0]
	s.vector.Gather(s.bytes)
	s.counts.back.encoded += len(s.vector.Append(nil))
	s.vector.Expand(s.bytes)
	copy(gradients, floats(s.bytes))
}

// place is a layer behind which a model is split, of its net: 0 of the only one, of the
// recommender's bottom net or the translation's encoder; 1 of the top net or decoder.
type place struct{ net, layer int }

// splitAt has models be split at places, at a sparsity, the thresholds of the first split
// looked at for others.
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

// put puts splitters into a model that can be split.
func put(m model.Model, nets [2]map[int]model.Splitter) {
	switch m := m.(type) {
	case *model.Recommend:
		m.Split(nets[0], nets[1])
	case *model.Translate:
		m.Split(nets[0], nets[1])
	case *model.Image:
		m.Split(nets[0])
	}
}

// divide splits models as the variant has it, or puts them together again.
func (v *variant) divide(models []model.Model) *splits {
	if v.split != nil {
		return v.split(models)
	}
	for _, m := range models {
		put(m, [2]map[int]model.Splitter{})
	}
	return nil
}

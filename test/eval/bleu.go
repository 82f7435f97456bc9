package main

import (
	"math"

	"github.com/psidecar/psidecar/test/eval/translate"
)

// bleu returns the score of translations against one reference each, in percent: the geometric
// mean of the shares of runs of one to four words that the reference has too, lowered if all
// translations together are shorter than the references (Papineni et al. 2002).
func bleu(translations, references [][]uint32) float64 {
	const longest = 4
	logs, words, wanted := 0.0, 0, 0
	for n := 1; n <= longest; n++ {
		found, all := 0, 0
		for i, t := range translations {
			has := runs(references[i], n)
			for run, times := range runs(t, n) {
				found += min(times, has[run])
				all += times
			}
		}
		// A mean of logarithms has no value for 0.
		if found == 0 {
			return 0
		}
		logs += math.Log(float64(found)/float64(all)) / longest
	}
	for i, t := range translations {
		words += len(t)
		wanted += len(references[i])
	}
	return 100 * math.Exp(logs+min(0, 1-float64(wanted)/float64(words)))
}

// runs counts the runs of n words, at most four. Shorter runs are padded with zeros, so that a
// map can hold them.
func runs(words []uint32, n int) map[[4]uint32]int {
	counts := map[[4]uint32]int{}
	for i := 0; i+n <= len(words); i++ {
		var run [4]uint32
		copy(run[:], words[i:i+n])
		counts[run]++
	}
	return counts
}

// translated returns the BLEU score of a model's translations of its first sentences, of which
// each word takes a pass through the model. What it pulls for that is not counted as traffic.
func (w *trainee) translated(m *translate.Model, step int32) (float64, error) {
	const most = 400
	batch := whole(m)
	batch = batch[:min(most, len(batch))]
	// Scoring is no part of the job's traffic: the figure is restored below.
	pulled := w.pulled
	if err := w.pull(m.Groups(batch), step); err != nil {
		return 0, err
	}
	w.pulled = pulled
	var references [][]uint32
	for i := range batch {
		references = append(references, m.Set().Pair(i).Target)
	}
	return bleu(m.Words(batch, w.params), references), nil
}

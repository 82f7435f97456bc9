package model

import "math"

// Bins of scores: log-odds from -16 to 16 in steps of 1/256. Two scores closer than
// that count as tied, which costs the AUC nothing that matters, and lets tallies of
// several workers be added up.
const (
	bins     = 8192
	perUnit  = 256
	lowScore = -16
)

// A Tally is the sum over some samples. It travels as JSON. Adding up integers and
// loss in any order gives the same counts; the loss may differ in its last bits.
type Tally struct {
	Samples  int64   `json:"samples"`
	Loss     float64 `json:"loss"` // summed
	Correct  int64   `json:"correct"`
	Positive []int64 `json:"positive,omitempty"` // score histograms of a yes-or-no model
	Negative []int64 `json:"negative,omitempty"`
}

// Binary counts a prediction of a yes-or-no model, given as log-odds, and returns its
// logistic loss.
func (t *Tally) Binary(logOdds float64, yes bool) float64 {
	if t.Positive == nil {
		t.Positive, t.Negative = make([]int64, bins), make([]int64, bins)
	}
	bin := min(bins-1, max(0, int((logOdds-lowScore)*perUnit)))
	if logOdds != logOdds {
		bin = 0
	}
	if yes {
		t.Positive[bin]++
	} else {
		t.Negative[bin]++
	}
	loss := LogisticLoss(logOdds, yes)
	t.Class((logOdds > 0) == yes, loss)
	return loss
}

// Class counts a prediction of a model with any number of classes.
func (t *Tally) Class(correct bool, loss float64) {
	t.Samples++
	t.Loss += loss
	if correct {
		t.Correct++
	}
}

// Add adds the samples of o.
func (t *Tally) Add(o Tally) {
	t.Samples += o.Samples
	t.Loss += o.Loss
	t.Correct += o.Correct
	if len(o.Positive) != bins || len(o.Negative) != bins {
		return
	}
	if t.Positive == nil {
		t.Positive, t.Negative = make([]int64, bins), make([]int64, bins)
	}
	for i := range bins {
		t.Positive[i] += o.Positive[i]
		t.Negative[i] += o.Negative[i]
	}
}

// MeanLoss returns the loss per sample, NaN without samples.
func (t *Tally) MeanLoss() float64 { return t.Loss / float64(t.Samples) }

// LossSince returns the mean loss of the samples that were counted since the tally
// was as mark, and sets mark to what it is now.
func (t *Tally) LossSince(mark *Tally) float64 {
	mean := (t.Loss - mark.Loss) / float64(t.Samples-mark.Samples)
	*mark = Tally{Samples: t.Samples, Loss: t.Loss}
	return mean
}

// Accuracy returns the share of samples that were right, NaN without samples.
func (t *Tally) Accuracy() float64 { return float64(t.Correct) / float64(t.Samples) }

// AUC returns the probability that a random positive sample scores above a random
// negative one, ties counting half. It is NaN if either kind is missing.
func (t *Tally) AUC() float64 {
	var below, pairs, positives, negatives float64
	for i := range t.Positive {
		p, n := float64(t.Positive[i]), float64(t.Negative[i])
		pairs += p * (below + n/2)
		below += n
		positives += p
		negatives += n
	}
	return pairs / (positives * negatives)
}

// LogisticLoss returns ln(1 + exp(-logOdds)) for a yes, ln(1 + exp(logOdds))
// for a no.
func LogisticLoss(logOdds float64, yes bool) float64 {
	if yes {
		logOdds = -logOdds
	}
	if logOdds > 0 {
		return logOdds + math.Log1p(math.Exp(-logOdds))
	}
	return math.Log1p(math.Exp(logOdds))
}

// Sigmoid returns 1 / (1 + exp(-x)).
func Sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

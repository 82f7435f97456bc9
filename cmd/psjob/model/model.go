// Package model holds the models that psjob trains. A model knows its worker's
// samples; the training loop asks it for the keys that a batch needs, pulls them, and
// gets a gradient to push. Models have no sockets, and one goroutine uses them.
//
// A server stores the difference of a parameter from its initial value, so that every
// key starts at zero on any server, PS-lite's own among them; the models add initial
// values themselves, which are functions of a seed. So no worker has to push initial
// values, and no other has to wait for that.
//
// The models stand for the ways in which real jobs use parameters: [Linear] and
// [Factor] use the few keys that a batch's samples name, with one value or several;
// [Image] uses all of a dense net in every step; [Recommend] has embeddings of the
// first kind and nets of the second.
//
// # Metrics
//
// A [Tally] sums up how good predictions are: loss, accuracy and the area under the
// ROC curve. Tallies of several workers add up to that of all.
//
// # Samples
//
// The Load functions keep a worker's training data in memory: sparse rows of libsvm
// or libffm text, click logs in Criteo's format, images in MNIST's idx format. They map
// feature ids to keys of the wire.
package model

import (
	"math"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// A Model is used by one goroutine. Batches are lists of sample numbers.
type Model interface {
	// Samples returns how many samples there are.
	Samples() int
	// Groups returns the parameters that a batch uses. The groups are valid
	// until the next call.
	Groups(batch []int32) []Group
	// Gradient sums the gradients of the batch's samples into grads, which is
	// shaped like params and overwritten: one list a group, in the order of
	// its keys. It counts the predictions in tally. params may be changed.
	Gradient(batch []int32, params, grads [][]float32, tally *Tally)
	// Score only predicts.
	Score(batch []int32, params [][]float32, tally *Tally)
}

// A Group is the parameters of one request: ascending keys that all have Width
// values, or Lens[i] values where Lens is not nil.
type Group struct {
	Keys  []uint64
	Width int
	Lens  []int32
}

// Values returns the number of values of all keys.
func (g Group) Values() int {
	if g.Lens == nil {
		return g.Width * len(g.Keys)
	}
	n := 0
	for _, l := range g.Lens {
		n += int(l)
	}
	return n
}

// AddInitial adds initial values in [-scale, scale) to params, width values a key,
// from column from on. They depend on seed, key and column only: every worker adds
// the same.
func AddInitial(seed uint64, keys []uint64, params []float32, width, from int, scale float32) {
	for i, key := range keys {
		row := params[i*width : (i+1)*width]
		for j := from; j < width; j++ {
			row[j] += scale * unitRandom(seed^key, uint64(j))
		}
	}
}

// unitRandom returns a number in [-1, 1) that depends on both words (the finalizer of
// SplitMix64).
func unitRandom(a, b uint64) float32 {
	x := a*splitmix.Golden + (b+1)*0xbf58476d1ce4e5b9
	x = splitmix.Mix(x)
	return float32(int64(x)) / (1 << 63)
}

// slope returns the derivative of the logistic loss with respect to the log-odds.
func slope(logOdds float64, yes bool) float32 {
	p := Sigmoid(logOdds)
	if yes {
		p--
	}
	if math.IsNaN(p) {
		return float32(math.NaN())
	}
	return float32(p)
}

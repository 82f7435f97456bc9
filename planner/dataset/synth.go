package dataset

import (
	"math"
	"math/rand/v2"
)

// stream returns the n-th random source of a seed. Every row has a source of its own, so that it
// does not depend on the rows before it.
func stream(seed, n uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, n*0x9e3779b97f4a7c15+0x632be59bd9b4e019))
}

// An alias draws from a discrete distribution in constant time (Walker 1977, in the form of Vose
// 1991).
type alias struct {
	keep  []float64 // chance to stay at a slot
	other []uint32  // where to go else
}

// newAlias prepares weights, which need not sum to one. Each slot keeps its own value with
// probability keep, and yields other otherwise.
func newAlias(weights []float64) alias {
	n := len(weights)
	a := alias{keep: make([]float64, n), other: make([]uint32, n)}
	var sum float64
	for _, w := range weights {
		sum += w
	}
	var small, large []uint32
	for i, w := range weights {
		a.keep[i] = w * float64(n) / sum
		a.other[i] = uint32(i)
		if a.keep[i] < 1 {
			small = append(small, uint32(i))
		} else {
			large = append(large, uint32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		a.other[s] = l
		// The large weight fills up the small one's slot and shrinks by what it gives.
		a.keep[l] -= 1 - a.keep[s]
		if a.keep[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, i := range append(small, large...) { // the rest is 1 but for rounding
		a.keep[i] = 1
	}
	return a
}

// draw returns an index with a probability proportional to its weight.
func (a alias) draw(r *rand.Rand) uint32 {
	i := uint32(r.IntN(len(a.keep)))
	if r.Float64() < a.keep[i] {
		return i
	}
	return a.other[i]
}

// zipfWeights returns the Zipf-Mandelbrot weights 1/(rank+2.7)^skew of n
// ranks. The shift is the one that fits word counts of natural text.
func zipfWeights(n int, skew float64) []float64 {
	w := make([]float64, n)
	for i := range w {
		w[i] = math.Pow(float64(i)+2.7, -skew)
	}
	return w
}

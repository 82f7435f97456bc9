package best

import (
	"math"
	"math/rand/v2"
)

// noiseSize is the number of different values. They are the quantiles of the distribution in random
// order, so the table has its exact shape.
const noiseSize = 1 << 14

// noise is a table of Gumbel-distributed numbers: the block with the least cost - temp x noise is a
// draw from the heat bath at temperature temp. A vertex reads k in a row, from a random place in
// each sweep. The first k are repeated at the end, so that no read wraps around.
type noise []float32

// newNoise returns the table in an order that rng decides. Adjacent entries are independent then,
// which a draw needs: its k blocks read adjacent ones.
func newNoise(rng *rand.Rand, k int) noise {
	n := make(noise, noiseSize+k)
	for i := range noiseSize {
		n[i] = float32(-math.Log(-math.Log((float64(i) + 0.5) / noiseSize)))
	}
	rng.Shuffle(noiseSize, func(i, j int) { n[i], n[j] = n[j], n[i] })
	for i := range k {
		n[noiseSize+i] = n[i%noiseSize]
	}
	return n
}

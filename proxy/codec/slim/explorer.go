package slim

import (
	"math/bits"
	"math/rand/v2"

	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// An explorer draws positions outside of a core: Exploration of Algorithm 1.
// What it draws depends on its seed, the round and the core alone, which both
// ends of a link know, so that they draw the same and no position is sent.
type explorer struct {
	seed   uint64
	size   int
	mask   sparse.Mask // what was drawn last
	source rand.PCG
}

// draw draws size positions of n, each set of positions outside of the core as
// likely as any other (Knuth, The Art of Computer Programming 2, 3.4.2,
// Algorithm S). There are as many outside.
func (e *explorer) draw(core sparse.Mask, n int, round uint64) {
	e.mask = e.mask.Resized(n)
	e.source.Seed(e.seed, round)
	wanted, left := uint64(e.size), uint64(n-core.Count())
	for i := 0; wanted > 0; i++ {
		outside := ^core[i]
		for ; outside != 0 && wanted > 0; outside &= outside - 1 {
			if chosen, _ := bits.Mul64(e.source.Uint64(), left); chosen < wanted {
				e.mask[i] |= outside & -outside
				wanted--
			}
			left--
		}
	}
}

package slim

import (
	"math/bits"
	"math/rand/v2"

	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// An explorer draws positions outside of a core: Exploration of Algorithm 1. Its draws
// depend on nothing but the seed, the round and the core. Both ends of a link know these
// and draw the same positions, so that none is sent. A change of this function changes the
// wire format.
type explorer struct {
	seed   uint64
	size   int
	mask   sparse.Mask // what was drawn last
	source rand.PCG
}

// draw draws size positions of n outside of the core. All sets of that size are
// equally likely (Knuth, The Art of Computer Programming 2, 3.4.2, Algorithm S). The
// caller knows that there are as many outside.
func (e *explorer) draw(core sparse.Mask, n int, round uint64) {
	e.mask = e.mask.Resized(n)
	e.source.Seed(e.seed, round)
	wanted, left := uint64(e.size), uint64(n-core.Count())
	for i := 0; wanted > 0; i++ {
		outside := ^core[i]
		for ; outside != 0 && wanted > 0; outside &= outside - 1 {
			// The upper half of the product is uniform below left, the number of positions
			// still to be seen. Once only as many are left as are wanted, each of them is
			// chosen, so the loop ends before the bits behind the vector's end, which look
			// as if they were outside of the core.
			if chosen, _ := bits.Mul64(e.source.Uint64(), left); chosen < wanted {
				e.mask[i] |= outside & -outside
				wanted--
			}
			left--
		}
	}
}

package twostep

import (
	"math/bits"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A ranking is P', the parameters that nobody has taken. What one adds to a machine that uses it,
// w (lambda - 2), is the same for all of these machines, and so is the order in which they
// go through the parameters: places, best first. One bitmap has the places that are not taken,
// another per machine those of the parameters that it uses.
type ranking struct {
	// By place, the parameter.
	params []uint32
	// A bitmap of the places that are not taken.
	there []uint64
	// By machine, a bitmap of the places that it uses.
	uses [][]uint64
	// By machine, the word of its bitmap to look at next. Places before it are taken or not used,
	// and stay so.
	at []int
}

// newRanking sorts the parameters, and enters the places that each machine
// uses.
func newRanking(p *placement) *ranking {
	keys := make([]uint64, 0, len(p.owner))
	r := &ranking{params: make([]uint32, 0, len(p.owner)), at: make([]int, p.k)}
	for param := range p.owner {
		change := int64(p.users.count(param)-2) * int64(p.g.ParamWeight(param))
		keys = append(keys, uint64(change)^1<<63) // in the order of signed numbers
		r.params = append(r.params, uint32(param))
	}
	partition.RadixSort(keys, r.params)
	words := (len(r.params) + 63) / 64
	r.there = graph.MakeHuge[uint64](words)
	for range p.k {
		r.uses = append(r.uses, graph.MakeHuge[uint64](words))
	}
	for place, param := range r.params {
		bit := uint64(1) << (place % 64)
		r.there[place/64] |= bit
		p.users.each(int(param), func(i int) { r.uses[i][place/64] |= bit })
	}
	return r
}

// next removes and returns the parameter that adds the least to what machine i moves, the first
// among equals, of those that i uses; ok is false if there is none. Each machine goes through its bitmap once, so all calls together take
// time in proportion to machines times parameters / 64.
func (r *ranking) next(i int) (param uint32, ok bool) {
	uses := r.uses[i]
	for w := r.at[i]; w < len(uses); w++ {
		if word := uses[w] & r.there[w]; word != 0 {
			r.at[i] = w
			r.there[w] ^= word & -word
			return r.params[w*64+bits.TrailingZeros64(word)], true
		}
	}
	r.at[i] = len(uses)
	return 0, false
}

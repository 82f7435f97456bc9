package twostep

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// costs holds f(D_i + d) - f(D_i) for each sample d, and over it a tree of
// lower bounds, 64 children a node, from which the least cost is found. A cost
// only ever falls, which the tree is told of at once; that a sample has been
// assigned, it finds out when it looks.
type costs struct {
	cost  []uint32
	bound [][]uint32 // bound[0][b] <= the costs of free samples 64b..64b+63, and so on up
}

// none is the cost of no sample.
const none = math.MaxUint32

// newCosts returns the costs for a machine that has nothing.
func newCosts(g *graph.Graph) (*costs, error) {
	c := &costs{cost: make([]uint32, g.Samples())}
	for s := range c.cost {
		var sum uint64
		if g.Weighted() {
			for _, p := range g.ParamsOf(s) {
				sum += uint64(g.ParamWeight(int(p)))
			}
		} else {
			sum = uint64(len(g.ParamsOf(s)))
		}
		if sum >= none {
			return nil, fmt.Errorf("sample %d uses parameters of weight %d: at most %d; give weights in larger units", s, sum, uint32(none-1))
		}
		c.cost[s] = uint32(sum)
	}
	for level := c.cost; len(level) > 1 || len(c.bound) == 0; level = c.bound[len(c.bound)-1] {
		up := make([]uint32, (len(level)+63)/64)
		for b := range up {
			up[b] = slices.Min(level[b*64 : min(b*64+64, len(level))])
		}
		c.bound = append(c.bound, up)
	}
	return c, nil
}

func (c *costs) clone() *costs {
	other := &costs{cost: slices.Clone(c.cost)}
	for _, level := range c.bound {
		other.bound = append(other.bound, slices.Clone(level))
	}
	return other
}

// lower takes w from the costs of those samples that are free.
func (c *costs) lower(samples []uint32, w uint32, free []uint64) {
	first := c.bound[0]
	for _, s := range samples {
		if free[s/64]>>(s%64)&1 == 0 {
			continue
		}
		v := c.cost[s] - w
		c.cost[s] = v
		if v < first[s/64] {
			first[s/64] = v
			c.lowerAbove(s/64, v)
		}
	}
}

func (c *costs) lowerAbove(b, v uint32) {
	for _, level := range c.bound[1:] {
		b /= 64
		if level[b] <= v {
			return
		}
		level[b] = v
	}
}

// least returns the free sample of the least cost, the first among equals, or
// no set where that cost is above room.
func (c *costs) least(free []uint64, room int64) subset {
	top := len(c.bound) - 1
	for {
		v := c.bound[top][0]
		if v == none || int64(v) > room {
			return subset{}
		}
		b := 0
		for level := top - 1; level >= 0; level-- {
			children := c.bound[level][b*64 : min(b*64+64, len(c.bound[level]))]
			b = b*64 + slices.Index(children, v)
		}
		if s, found := c.leastIn(b, free); found == v {
			return subset{set: []uint32{s}, cost: int64(v)}
		} else {
			c.raise(b, found)
		}
	}
}

// leastIn returns the least cost of the free samples of one block, and the
// first sample that has it.
func (c *costs) leastIn(b int, free []uint64) (s, least uint32) {
	least = none
	for word := free[b]; word != 0; word &= word - 1 {
		x := uint32(b*64 + bits.TrailingZeros64(word))
		if v := c.cost[x]; v < least {
			s, least = x, v
		}
	}
	return s, least
}

// raise sets the bound of block b and what follows from it above.
func (c *costs) raise(b int, v uint32) {
	c.bound[0][b] = v
	for level := range len(c.bound) - 1 {
		b /= 64
		children := c.bound[level][b*64 : min(b*64+64, len(c.bound[level]))]
		c.bound[level+1][b] = slices.Min(children)
	}
}

// leastOf is least among the samples given.
func (c *costs) leastOf(samples []uint32, room int64) subset {
	if best := c.cheapest(samples); int64(c.cost[best]) <= room {
		return subset{set: []uint32{best}, cost: int64(c.cost[best])}
	}
	return subset{}
}

// cheapest returns the sample of the least cost, the first among equals.
func (c *costs) cheapest(samples []uint32) uint32 {
	best := samples[0]
	for _, s := range samples[1:] {
		if c.cost[s] < c.cost[best] || c.cost[s] == c.cost[best] && s < best {
			best = s
		}
	}
	return best
}

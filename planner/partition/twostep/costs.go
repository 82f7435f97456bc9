package twostep

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// costs holds f(D_i + d) - f(D_i) for each sample d. That is a small number for
// most graphs, and a table of small numbers stays in the cache far longer.
type costs interface {
	// of sets dst[i] to the cost of samples[i].
	of(dst []int64, samples []uint32)
	// lower takes w from the costs of samples, assigned ones among them.
	lower(samples []uint32, w uint32, free []uint64)
	// raise undoes lower.
	raise(samples []uint32, w uint32)
	// claim takes s out: it is no candidate, though still free for others.
	claim(s uint32)
	// release undoes claim.
	release(s uint32, free []uint64)
	// least returns the candidate of the least cost, the first among equals, or no
	// set where that cost is above room. Candidates are free and not claimed.
	least(free []uint64, room int64) subset
	clone() costs
}

// A number is what a cost is kept in. The highest bit is set for a sample that
// is claimed or known to be assigned: its cost may fall on unheeded.
type number interface{ uint8 | uint16 | uint32 }

// newCosts returns the costs for a machine that has nothing.
func newCosts(g *graph.Graph) (costs, error) {
	full := make([]uint32, g.Samples())
	for s := range full {
		var sum uint64
		if g.Weighted() {
			for _, p := range g.ParamsOf(s) {
				sum += uint64(g.ParamWeight(int(p)))
			}
		} else {
			sum = uint64(len(g.ParamsOf(s)))
		}
		if sum >= uint64(assigned[uint32]()) {
			return nil, fmt.Errorf("sample %d uses parameters of weight %d: at most %d; give weights in larger units", s, sum, assigned[uint32]()-1)
		}
		full[s] = uint32(sum)
	}
	switch most := slices.Max(full); {
	case most < uint32(assigned[uint8]()):
		return newTree[uint8](full), nil
	case most < uint32(assigned[uint16]()):
		return newTree[uint16](full), nil
	}
	return newTree[uint32](full), nil
}

// assigned returns the highest bit.
func assigned[T number]() T { return ^(^T(0) >> 1) }

// A tree is costs, and over them a tree of lower bounds, 64 children a node,
// from which the least cost is found. A cost only ever falls, which the tree is
// told of at once; that a sample has been assigned, it finds out when it looks,
// or when the cost would be the least of its block.
type tree[T number] struct {
	cost  []T
	bound [][]T // bound[0][b] <= the costs of free samples 64b..64b+63, and so on up
}

func newTree[T number](full []uint32) *tree[T] {
	c := &tree[T]{cost: graph.MakeHuge[T](len(full))}
	for s, v := range full {
		c.cost[s] = T(v)
	}
	for level := c.cost; len(level) > 1 || len(c.bound) == 0; level = c.bound[len(c.bound)-1] {
		up := make([]T, (len(level)+63)/64)
		for b := range up {
			up[b] = slices.Min(level[b*64 : min(b*64+64, len(level))])
		}
		c.bound = append(c.bound, up)
	}
	return c
}

func (c *tree[T]) clone() costs {
	other := &tree[T]{cost: graph.MakeHuge[T](len(c.cost))}
	copy(other.cost, c.cost)
	for _, level := range c.bound {
		other.bound = append(other.bound, slices.Clone(level))
	}
	return other
}

func (c *tree[T]) of(dst []int64, samples []uint32) {
	for i, s := range samples {
		dst[i] = int64(c.cost[s])
	}
}

// lower changes many costs before it looks at the first: they are all over the
// memory, and one waits for as long as for many.
func (c *tree[T]) lower(samples []uint32, w uint32, free []uint64) {
	const many = 64
	var now [many]T
	for first := c.bound[0]; len(samples) > 0; {
		some := samples[:min(many, len(samples))]
		samples = samples[len(some):]
		for i, s := range some {
			v := c.cost[s] - T(w)
			c.cost[s] = v
			now[i] = v
		}
		for i, s := range some {
			if v := now[i]; v < first[s/64] {
				c.lowerBound(s, v, free)
			}
		}
	}
}

// lowerBound follows up that sample s costs v, which is less than its block has.
func (c *tree[T]) lowerBound(s uint32, v T, free []uint64) {
	if !isFree(free, s) {
		c.cost[s] |= assigned[T]()
		return
	}
	for _, level := range c.bound {
		s /= 64
		if level[s] <= v {
			return
		}
		level[s] = v
	}
}

func (c *tree[T]) raise(samples []uint32, w uint32) {
	for _, s := range samples {
		c.cost[s] += T(w) // the bounds stay bounds
	}
}

func (c *tree[T]) claim(s uint32) { c.cost[s] |= assigned[T]() }

func (c *tree[T]) release(s uint32, free []uint64) {
	c.cost[s] &^= assigned[T]()
	c.lowerBound(s, c.cost[s], free)
}

func (c *tree[T]) least(free []uint64, room int64) subset {
	top := len(c.bound) - 1
	for {
		v := c.bound[top][0]
		if v >= assigned[T]() || int64(v) > room {
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
			c.raiseBound(b, found)
		}
	}
}

// leastIn returns the least cost of the free samples of one block, and the
// first sample that has it; a cost of no sample where none is free.
func (c *tree[T]) leastIn(b int, free []uint64) (s uint32, least T) {
	least = assigned[T]()
	for word := free[b]; word != 0; word &= word - 1 {
		x := uint32(b*64 + bits.TrailingZeros64(word))
		if v := c.cost[x]; v < least {
			s, least = x, v
		}
	}
	return s, least
}

// raiseBound sets the bound of block b and what follows from it above.
func (c *tree[T]) raiseBound(b int, v T) {
	c.bound[0][b] = v
	for level := range len(c.bound) - 1 {
		b /= 64
		children := c.bound[level][b*64 : min(b*64+64, len(c.bound[level]))]
		c.bound[level+1][b] = slices.Min(children)
	}
}

package twostep

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// costs has f(D_i + d) - f(D_i) for each sample d of one machine. It has implementations with 8, 16
// and 32 bits per cost: costs are small in most graphs, and a table of small numbers stays in the
// cache far longer.
type costs interface {
	// of sets dst[i] to the cost of samples[i].
	of(dst []int64, samples []uint32)
	// lower subtracts w from the costs of samples, assigned ones among them.
	lower(samples []uint32, w uint32, free []uint64)
	// raise undoes lower.
	raise(samples []uint32, w uint32)
	// claim excludes s from the candidates of this machine; it stays free for others.
	claim(s uint32)
	// release undoes claim.
	release(s uint32, free []uint64)
	// least returns the candidate with the least cost, the first among equals, or an empty set if
	// that cost is above room. Candidates are free and not claimed.
	least(free []uint64, room int64) subset
	clone() costs
}

// A number is the type of a cost. Its highest bit marks a sample that is claimed or known to be
// assigned; the rest of such a cost does not matter.
type number interface{ uint8 | uint16 | uint32 }

// newCosts returns the costs for an empty machine, in the smallest type that fits. It fails if a
// sample uses parameters of more weight than 31 bits hold.
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

// assigned returns the bit that marks a cost as no candidate's.
func assigned[T number]() T { return ^(^T(0) >> 1) }

// A tree implements costs. Above the costs it has a tree of lower bounds with 64 children per node,
// in which least finds the minimum. A cost that falls is entered in the bounds at once. A sample
// that was assigned elsewhere is only noticed when it is looked at, so bounds may be too low, never
// too high.
type tree[T number] struct {
	cost []T
	// bound[0][b] is at most the costs of the free samples 64b..64b+63; bound[l+1] bounds bound[l]
	// in the same way.
	bound [][]T
}

// newTree returns the tree of the given costs, which fit into T.
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
	// Machines change their costs in parallel, so each has a copy of everything.
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

// lower changes many costs before it looks at the first one again: they are scattered over memory,
// and many cache misses at once take as long as one.
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

// lowerBound enters cost v of sample s, which is below its block's bound, in the bounds.
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

// least descends along the lowest bounds. If the block that it reaches has a higher minimum than
// its bound said, it corrects the bound and starts again.
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

// leastIn returns the least cost of the free samples of one block and the first sample that has it.
// If none is free the cost is that of no candidate.
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

// raiseBound sets the bound of block b, and those above it that follow from it.
func (c *tree[T]) raiseBound(b int, v T) {
	c.bound[0][b] = v
	for level := range len(c.bound) - 1 {
		b /= 64
		children := c.bound[level][b*64 : min(b*64+64, len(c.bound[level]))]
		c.bound[level+1][b] = slices.Min(children)
	}
}

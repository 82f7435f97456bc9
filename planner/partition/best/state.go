package best

import (
	"context"
	"math/bits"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A word is a set of up to 8, 16, 32 or 64 blocks, one bit each.
type word interface {
	uint8 | uint16 | uint32 | uint64
}

// width returns the number of bits of T.
func width[T word]() int { return bits.Len64(uint64(^T(0))) }

// A cell has the blocks that touch a net, and those that do so with a single pin. That is all that
// a vertex needs to know of a net: a block that touches it only by the vertex itself would lose it.
type cell[T word] struct{ touch, single T }

// A state is an assignment of a hypergraph's vertices to k blocks, with what is needed to price a
// move without looking at any other vertex.
//
// Invariants, between moves: count has the pins of each net by block; cells follow from count and
// anchors; size and cost are the sums over vertices and nets.
type state[T word] struct {
	h *hypergraph
	k int
	// cells[w][net] is for blocks w*width to w*width+width-1.
	cells [][]cell[T]
	count counts
	block []int32 // of each vertex
	size  []int64 // weight of the vertices in each block
	cost  costs
}

// costs are the quantities that annealing watches, in weights of nets.
type costs struct {
	// By block, the nets that it shares with other blocks. It must pay for each at least once.
	touch []int64
	// By block, all nets that its vertices pin: N(D_i).
	used []int64
	// The number of (net, block) pairs beyond one per net, which is what crosses the network.
	total int64
}

func newCosts(k int) costs { return costs{touch: make([]int64, k), used: make([]int64, k)} }

// drainFrom adds c to to and clears c.
func (to *costs) drainFrom(c *costs) {
	to.total += c.total
	c.total = 0
	for b := range c.touch {
		to.touch[b] += c.touch[b]
		to.used[b] += c.used[b]
		c.touch[b], c.used[b] = 0, 0
	}
}

// newState returns the state of an assignment, which it takes over. It counts in parallel: first
// pins, by parts of the nets with equally many pins, then cells and costs, by equal numbers of
// nets.
func newState[T word](ctx context.Context, h *hypergraph, k int, block []int32) (*state[T], error) {
	s := &state[T]{h: h, k: k, block: block}
	s.cells = make([][]cell[T], (k+width[T]()-1)/width[T]())
	for w := range s.cells {
		s.cells[w] = graph.MakeHuge[cell[T]](h.nets)
	}
	s.count = newCounts(h, k)
	s.size = make([]int64, k)
	s.cost = newCosts(k)
	for v, b := range block {
		s.size[b] += int64(h.weight[v])
		s.cost.used[b] += h.lone[v]
	}
	if err := eachPart(func(part, parts int) error { // with equally many pins
		from, to := h.cuts[shareCuts*part/parts], h.cuts[shareCuts*(part+1)/parts]
		return partition.EachPiece(ctx, len(block), func(first, last int) {
			for v := first; v < last; v++ {
				s.count.addRow(h, rowWithin(h.row(v), from, to, h.nets), int(block[v]))
			}
		})
	}); err != nil {
		return nil, err
	}
	var mu sync.Mutex                             // guards s.cost
	err := eachPart(func(part, parts int) error { // with equally many nets
		c := newCosts(k)
		s.summarizeAll(uint32(h.nets*part/parts), uint32(h.nets*(part+1)/parts), &c)
		mu.Lock()
		defer mu.Unlock()
		s.cost.drainFrom(&c)
		return ctx.Err()
	})
	return s, err
}

// eachPart calls work for each part on a goroutine of its own and returns the first error.
func eachPart(work func(part, parts int) error) error {
	var g errgroup.Group
	for part := range partition.LoopParts() {
		g.Go(func() error { return work(part, partition.LoopParts()) })
	}
	return g.Wait()
}

// summarizeAll sets the cells of nets from to to-1 from their counts and adds their costs to c.
func (s *state[T]) summarizeAll(from, to uint32, c *costs) {
	first, list := uint32(0), make([]uint32, s.k)
	for i, class := range s.h.class {
		for e := max(first, from); e < min(class.end, to); e++ {
			s.count.of(s.h, i, first, e, list)
			s.summarize(e, list, int64(class.weight), c)
		}
		first = class.end
	}
}

// summarize sets the cells of one net from its counts and adds its costs to to.
func (s *state[T]) summarize(e uint32, counts []uint32, weight int64, to *costs) {
	n := 0
	for b, c := range counts {
		w, bit := b/width[T](), T(1)<<(b%width[T]())
		if c > 0 {
			to.used[b] += weight
			s.cells[w][e].touch |= bit
			n++
		}
		if c == 1 {
			s.cells[w][e].single |= bit
		}
	}
	// A net within one block crosses no link.
	if n < 2 {
		return
	}
	to.total += int64(n-1) * weight
	for b := range counts {
		if s.cells[b/width[T]()][e].touch>>(b%width[T]())&1 != 0 {
			to.touch[b] += weight
		}
	}
}

// touched updates the cells of net e after a pin went from block a to block b. inA and inB are the
// pins that the blocks have now. It is called only if inA < 2 or inB < 3, since otherwise no cell
// changes.
func (s *state[T]) touched(e uint32, a, b int, inA, inB uint32, weight int64, c *costs) {
	aCell, aBit := &s.cells[a/width[T]()][e], T(1)<<(a%width[T]())
	bCell, bBit := &s.cells[b/width[T]()][e], T(1)<<(b%width[T]())
	left, joined := false, false
	switch {
	// At least two pins stay in the block, and so do its bits.
	case inA > 1:
	case inA == 1:
		aCell.single |= aBit
	default:
		left = true
		aCell.touch &^= aBit
		aCell.single &^= aBit
	}
	switch {
	case inB > 2:
	case inB == 2:
		bCell.single &^= bBit
	default:
		joined = true
		bCell.touch |= bBit
		bCell.single |= bBit
	}
	if left || joined {
		s.account(e, a, b, left, joined, weight, c)
	}
}

// account adds the cost of block a leaving the set of blocks that touch net e, or of block b
// joining it. A block shares a net if another block touches it too, so when the set shrinks to one
// or grows from one, a block that did not move changes its touch cost as well.
func (s *state[T]) account(e uint32, a, b int, left, joined bool, weight int64, c *costs) {
	// The number of blocks that touch the net now.
	after := 0
	for w := range s.cells {
		after += bits.OnesCount64(uint64(s.cells[w][e].touch))
	}
	before := after
	if left {
		before++
		c.used[a] -= weight
		c.total -= weight
	}
	if joined {
		before--
		c.used[b] += weight
		c.total += weight
	}
	switch {
	case left && before > 1:
		c.touch[a] -= weight
	case !left && before == 1: // a had it alone
		c.touch[a] += weight
	}
	switch {
	case joined && after > 1:
		c.touch[b] += weight
	case !joined && after == 1: // b has it alone now
		c.touch[b] -= weight
	}
}

// moveRow updates counts, cells and c for the nets from to to-1 of a vertex that goes from block a
// to block b. The vertex's own block, size and lone nets are left to shift. Calls with disjoint
// ranges of nets and costs of their own may run in parallel.
func (s *state[T]) moveRow(v, a, b int, from, to uint32, c *costs) {
	row := rowWithin(s.h.row(v), from, to, s.h.nets)
	first := uint32(0)
	for i, class := range s.h.class {
		if len(row) == 0 {
			return
		}
		if n := classRun(row, class.end); n > 0 {
			s.move(row[:n], i, first, a, b, c)
			row = row[n:]
		}
		first = class.end
	}
}

// rowWithin returns the part of a row within nets from to to-1. nets is the number of all nets.
func rowWithin(row []uint32, from, to uint32, nets int) []uint32 {
	lo, hi := 0, len(row)
	if from > 0 {
		lo, _ = slices.BinarySearch(row, from)
	}
	if int(to) < nets {
		hi, _ = slices.BinarySearch(row, to)
	}
	return row[lo:hi]
}

// classRun returns how many nets at the beginning of row, which must not be empty, are below end.
func classRun(row []uint32, end uint32) int {
	switch {
	case row[0] >= end:
		return 0
	case row[len(row)-1] < end:
		return len(row)
	}
	n, _ := slices.BinarySearch(row, end)
	return n
}

// relocate moves one vertex completely.
func (s *state[T]) relocate(v int, b int) {
	a := int(s.block[v])
	s.moveRow(v, a, b, 0, uint32(s.h.nets), &s.cost)
	s.shift(v, a, b)
}

// shift updates what a vertex contributes apart from its nets.
func (s *state[T]) shift(v, a, b int) {
	s.block[v] = int32(b)
	s.size[a] -= int64(s.h.weight[v])
	s.size[b] += int64(s.h.weight[v])
	s.cost.used[a] -= s.h.lone[v]
	s.cost.used[b] += s.h.lone[v]
}

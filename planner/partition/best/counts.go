package best

import (
	"math/bits"

	"github.com/psidecar/psidecar/planner/graph"
)

// fewPins is the largest number of pins of a net whose counts are bytes.
const fewPins = 255

// counts has, for each net, how many of its pins are in each block: in four bytes for the few nets
// with many pins, which come first in their class, and in one byte for all others. So the counts of
// a net take a quarter of a cache line for 16 blocks, and an edge of a large graph takes few bytes.
type counts struct {
	k int
	// By class, k counts for each net of many pins.
	many [][]uint32
	// By class, k counts for each other net.
	few [][]uint8
}

// newCounts returns counts of zero. The lists of all classes share two allocations.
func newCounts(h *hypergraph, k int) counts {
	c := counts{k: k, many: make([][]uint32, len(h.class)), few: make([][]uint8, len(h.class))}
	from, many, few := 0, 0, 0
	for _, class := range h.class {
		many += int(class.few) - from
		few += int(class.end - class.few)
		from = int(class.end)
	}
	allMany, allFew := graph.MakeHuge[uint32](many*k), graph.MakeHuge[uint8](few*k)
	from = 0
	for i, class := range h.class {
		many, few = (int(class.few)-from)*k, int(class.end-class.few)*k
		c.many[i], allMany = allMany[:many:many], allMany[many:]
		c.few[i], allFew = allFew[:few:few], allFew[few:]
		from = int(class.end)
	}
	return c
}

// addRow counts the pins of a vertex in block b. Calls for disjoint ranges of nets may run in
// parallel.
func (c *counts) addRow(h *hypergraph, row []uint32, b int) {
	from := uint32(0)
	for i, class := range h.class {
		if len(row) == 0 {
			return
		}
		n := classRun(row, class.end)
		for _, e := range row[:n] {
			if e < class.few {
				c.many[i][int(e-from)*c.k+b]++
			} else {
				c.few[i][int(e-class.few)*c.k+b]++
			}
		}
		row, from = row[n:], class.end
	}
}

// of sets list to the counts of net e, which is of the i-th class, whose first net is from.
func (c *counts) of(h *hypergraph, i int, from, e uint32, list []uint32) {
	if few := h.class[i].few; e >= few {
		for b, n := range c.few[i][int(e-few)*c.k:][:c.k] {
			list[b] = uint32(n)
		}
		return
	}
	copy(list, c.many[i][int(e-from)*c.k:][:c.k])
}

// move updates the counts and cells of nets, a part of the row of a vertex that goes from block a
// to block b, and adds the change of costs to c. All nets are of the i-th class, whose first net is
// from.
func (s *state[T]) move(nets []uint32, i int, from uint32, a, b int, c *costs) {
	class := s.h.class[i]
	if n := classRun(nets, class.few); n > 0 {
		moveCounts(s, s.count.many[i], nets[:n], from, a, b, int64(class.weight), c)
		nets = nets[n:]
	}
	if len(nets) > 0 {
		moveCounts(s, s.count.few[i], nets, class.few, a, b, int64(class.weight), c)
	}
}

// moveCounts is move for nets whose counts begin with those of net first. With one word per cell
// it reads the counts and cells of many nets before it uses any of them: they are
// scattered over memory, and many cache misses at once take as long as one.
func moveCounts[T word, C uint8 | uint32](s *state[T], counts []C, nets []uint32, first uint32, a, b int, weight int64, c *costs) {
	const many = 64
	var inA, inB [many]C // pins in the two blocks after the move
	// The general case, net by net.
	if len(s.cells) > 1 {
		for _, e := range nets {
			own := counts[int(e-first)*s.k:][:s.k]
			own[a]--
			own[b]++
			if own[a] < 2 || own[b] < 3 {
				s.touched(e, a, b, uint32(own[a]), uint32(own[b]), weight, c)
			}
		}
		return
	}
	var was [many]cell[T]
	cells, d := s.cells[0], newDelta[T](a, b)
	for len(nets) > 0 {
		some := nets[:min(many, len(nets))]
		nets = nets[len(some):]
		for i, e := range some {
			own := counts[int(e-first)*s.k:][:s.k]
			was[i] = cells[e]
			inA[i], inB[i] = own[a]-1, own[b]+1
			own[a]--
			own[b]++
		}
		for i, e := range some {
			// Otherwise neither block's bits change.
			if inA[i] < 2 || inB[i] < 3 {
				cells[e] = d.move(was[i], uint32(inA[i]), uint32(inB[i]))
			}
		}
	}
	d.addTo(c, a, b, weight)
}

// A delta adds up, in numbers of nets, what the move of a vertex from block a to block b changes.
// Whether a leaves a net and b joins it is unpredictable, so it is computed without branches.
type delta[T word] struct {
	aBit, bBit T
	// The nets that a no longer touches, and those that b newly touches.
	left, joined int
	// By how many nets more than before the blocks share with others.
	shareA, shareB int
}

func newDelta[T word](a, b int) delta[T] { return delta[T]{aBit: 1 << a, bBit: 1 << b} }

// move returns the new cell of a net, of which a has inA pins left and b now has
// inB.
func (d *delta[T]) move(was cell[T], inA, inB uint32) cell[T] {
	left, joined := one(inA == 0), one(inB == 1)
	is := cell[T]{
		touch:  was.touch&^(d.aBit&-T(left)) | d.bBit,
		single: was.single&^(d.aBit|d.bBit) | d.aBit&-T(one(inA == 1)) | d.bBit&-T(joined),
	}
	after := bits.OnesCount64(uint64(is.touch))
	before := after + left - joined
	d.left, d.joined = d.left+left, d.joined+joined
	d.shareA += one(before == 1)&^left - left&one(before > 1)
	d.shareB += joined&one(after > 1) - one(after == 1)&^joined
	return is
}

// addTo adds the changes to c, for nets of the given weight.
func (d *delta[T]) addTo(c *costs, a, b int, weight int64) {
	c.used[a] -= int64(d.left) * weight
	c.used[b] += int64(d.joined) * weight
	c.total += int64(d.joined-d.left) * weight
	c.touch[a] += int64(d.shareA) * weight
	c.touch[b] += int64(d.shareB) * weight
}

// one returns 1 for true. The compiler makes it a conditional move.
func one(so bool) int {
	n := 0
	if so {
		n = 1
	}
	return n
}

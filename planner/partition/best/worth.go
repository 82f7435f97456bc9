package best

import (
	"context"
	"slices"

	"github.com/psidecar/psidecar/planner/partition"
)

// sampledVertices is the size of the sample.
const sampledVertices = 4096

// savedByClusters estimates which fraction of h's pins its first clusters would save, from a sample
// of vertices and the clusters that each would join first. It looks only at the pins of their nets:
// clustering everything takes as long as many sweeps, which is wasted if vertices share little.
func (h *hypergraph) savedByClusters(ctx context.Context, heaviest int32) (float64, error) {
	n := h.vertices()
	some := min(n, sampledVertices)
	c := &clustering{h: h, netWeight: h.netWeights(), heaviest: heaviest, label: make([]int32, n), weight: h.weight}
	for v := range c.label {
		c.label[v] = int32(v)
	}
	var err error
	if c.netStart, c.netPins, err = h.transposeSome(ctx, h.pins[:h.start[some]]); err != nil {
		return 0, err
	}
	r := rating{score: make([]float32, n)}
	saved, all := 0, 0
	err = partition.EachPiece(ctx, some, func(from, to int) {
		for v := from; v < to; v++ {
			all += len(h.row(v))
			saved += c.savedBy(&r, v)
		}
	})
	// Of shrink vertices that become one, all but the first save pins.
	return (1 - 1/shrink) * float64(saved) / float64(max(all, 1)), err
}

// savedBy returns how many pins vertex v saves in a cluster with the two vertices with which it
// shares most: one for each net that it has in common with them, and one more if no other vertex
// pins that net.
func (c *clustering) savedBy(r *rating, v int) (saved int) {
	first := c.favourite(r, v)
	if first < 0 {
		return 0
	}
	c.label[first] = int32(v) // so that v is not offered it again
	second := c.favourite(r, v)
	c.label[first] = first
	for _, e := range c.h.row(v) {
		_, one := slices.BinarySearch(c.h.row(int(first)), e)
		two := false
		if second >= 0 {
			_, two = slices.BinarySearch(c.h.row(int(second)), e)
		}
		if one || two {
			saved++
			// If the cluster has all pins of a net, the net becomes lone and the last pin is saved
			// too.
			pins := c.netStart[e+1] - c.netStart[e]
			if pins == 2 || pins == 3 && one && two {
				saved++
			}
		}
	}
	return saved
}

// transposeSome returns the vertices of the given nets, which may repeat, in ascending order. The
// lists of all other nets are empty.
func (h *hypergraph) transposeSome(ctx context.Context, nets []uint32) (start []int, vertices []int32, err error) {
	wanted := make([]uint64, h.nets/64+1)
	for _, e := range nets {
		wanted[e/64] |= 1 << (e % 64)
	}
	start = make([]int, h.nets+2)
	count, next := start[2:], start[1:]
	err = partition.EachPiece(ctx, h.vertices(), func(from, to int) {
		for _, e := range h.pins[h.start[from]:h.start[to]] {
			if wanted[e/64]>>(e%64)&1 != 0 {
				count[e]++
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for e := range h.nets {
		start[e+2] += start[e+1]
	}
	vertices = make([]int32, start[h.nets+1])
	err = partition.EachPiece(ctx, h.vertices(), func(from, to int) {
		for v := from; v < to; v++ {
			for _, e := range h.row(v) {
				if wanted[e/64]>>(e%64)&1 != 0 {
					vertices[next[e]] = int32(v)
					next[e]++
				}
			}
		}
	})
	return start[:h.nets+1], vertices, err
}

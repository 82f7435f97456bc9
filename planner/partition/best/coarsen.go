package best

import (
	"context"
	"slices"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// Bounds on the work of rating, and thresholds: for one vertex at most ratedPins pins of each net
// are looked at, and ratedInAll of all nets, rare and heavy ones first. Nets with more than
// ratedDegree pins say little about which vertices belong together. joinBatch vertices choose
// without seeing each other's choice.
const (
	ratedPins   = 64
	ratedInAll  = 4096
	ratedDegree = 2000
	joinBatch   = 512
)

// A clustering joins vertices that share nets, the rarer the better.
//
// Invariant: label[v] is the first vertex of v's cluster, whose own label is itself; weight and
// joined of a cluster are those at its first vertex.
type clustering struct {
	h         *hypergraph
	netStart  []int
	netPins   []int32
	netWeight []int32
	label     []int32 // of a vertex: the first of its cluster
	weight    []int32 // of a cluster, at its first
	joined    []bool  // the vertex, or the cluster that it is first of, has others
	heaviest  int32   // allowed cluster
}

// A rating is the scratch space of one member of the team, padded to cache lines of its own.
type rating struct {
	_       [64]byte
	score   []float32 // by label, 0 between calls
	touched []int32
	_       [64]byte
}

// cluster joins vertices until about want clusters are left or nothing fits any more. It returns
// the cluster of each vertex and their number. heaviest is the largest weight of a cluster. Members
// choose in parallel, then the choices are carried out in order, so the result does not depend on
// their number.
func (h *hypergraph) cluster(ctx context.Context, t *team, heaviest int32, want int) ([]int32, int, error) {
	n := h.vertices()
	c := &clustering{
		h: h, netWeight: h.netWeights(), heaviest: heaviest,
		label: make([]int32, n), weight: slices.Clone(h.weight), joined: make([]bool, n),
	}
	var err error
	// Vertices look for others through the nets that they share, so the nets' pins are needed.
	if c.netStart, c.netPins, err = h.transpose(ctx); err != nil {
		return nil, 0, err
	}
	for v := range c.label {
		c.label[v] = int32(v)
	}
	ratings := make([]rating, t.members)
	for i := range ratings {
		ratings[i].score = make([]float32, n)
	}
	choice := make([]int32, n)
	left := n
	for from := 0; from < n && left > want; from += joinBatch {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		to := min(from+joinBatch, n)
		t.runAll(func(i int) {
			for v := from + i; v < to; v += t.members {
				choice[v] = -1
				if !c.joined[v] {
					choice[v] = c.favourite(&ratings[i], v)
				}
			}
		})
		for v := from; v < to && left > want; v++ {
			// The choices of a batch may conflict. They are carried out in the order of vertices,
			// whoever has made them.
			if choice[v] >= 0 && c.join(v, choice[v]) {
				left--
			}
		}
	}
	labels, clusters := c.numbered()
	return labels, clusters, nil
}

// favourite returns the cluster with which vertex v, which is alone so far, shares most, or -1.
// Each common net counts its weight divided by the number of its other pins.
func (c *clustering) favourite(r *rating, v int) int32 {
	row := c.h.row(v)
	// Nets ascend by weight and, within a weight, from many pins to few. So the end of the row has
	// the heavy and rare ones.
	for i, left := len(row)-1, ratedInAll; i >= 0 && left > 0; i-- {
		e := row[i]
		pins := c.netPins[c.netStart[e]:c.netStart[e+1]]
		if len(pins) > ratedDegree || len(pins) < 2 {
			continue
		}
		gain := float32(c.netWeight[e]) / float32(len(pins)-1)
		// A window at a place that depends on vertex and net, so that not all vertices see the same
		// pins.
		if len(pins) > ratedPins {
			i := int(splitmix.Mix(uint64(v)<<32|uint64(e)) % uint64(len(pins)-ratedPins))
			pins = pins[i : i+ratedPins]
		}
		left -= len(pins)
		for _, u := range pins {
			l := c.label[u]
			if r.score[l] == 0 {
				r.touched = append(r.touched, l)
			}
			r.score[l] += gain
		}
	}
	most, at := float32(0), int32(-1)
	for _, l := range r.touched {
		score := r.score[l]
		r.score[l] = 0
		if score > most && c.fits(v, l) {
			most, at = score, l
		}
	}
	r.touched = r.touched[:0]
	return at
}

// fits reports whether v may join cluster l. Vertices that are bound to a block join only vertices
// bound to the same one.
func (c *clustering) fits(v int, l int32) bool {
	return l != int32(v) && c.weight[l]+c.h.weight[v] <= c.heaviest &&
		(c.h.home == nil || c.h.home[l] == c.h.home[v])
}

// join carries out v's choice if that is still possible, and reports whether it was.
func (c *clustering) join(v int, l int32) bool {
	l = c.label[l] // which may have joined another meanwhile
	if c.joined[v] || !c.fits(v, l) {
		return false
	}
	c.label[v] = l
	c.weight[l] += c.h.weight[v]
	c.joined[v], c.joined[l] = true, true
	return true
}

// numbered returns the clusters numbered from 0 in the order of their first vertices.
func (c *clustering) numbered() ([]int32, int) {
	number := make([]int32, len(c.label))
	count := int32(0)
	for v, l := range c.label {
		if l == int32(v) {
			number[v] = count
			count++
		}
	}
	for v, l := range c.label {
		c.label[v] = number[l]
	}
	return c.label, int(count)
}

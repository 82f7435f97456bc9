package dynamic

import (
	"cmp"
	"math"
	"slices"
)

// A correlation estimates which items the next batches will use from the recent ones (DW23 Alg. 3).
// Data vectors are not visible on the network; the set of keys that a batch pulled stands in for
// its vector, and those that it updated are the ones that it uses.
type correlation struct {
	keep      int     // batches remembered
	neighbors int     // r
	cutoff    float64 // c
	lru       []Batch // oldest first
}

// rememberBatch adds a batch and forgets the oldest one if there are too many. If a batch of the
// same machine and keys is known, the new one replaces it and becomes the newest.
func (c *correlation) rememberBatch(b Batch) {
	same := slices.IndexFunc(c.lru, func(o Batch) bool { return o.Machine == b.Machine && slices.Equal(o.Pulled, b.Pulled) })
	if same < 0 && len(c.lru) == c.keep {
		same = 0
	}
	if same >= 0 {
		c.lru = slices.Delete(c.lru, same, same+1)
	}
	c.lru = append(c.lru, Batch{b.Machine, slices.Clone(b.Pulled), slices.Clone(b.Updated)})
}

// An edge says how likely a machine's next batch uses an item.
type edge struct {
	item, machine int32
	weight        float64
}

// edges returns the correlation graph of the batches, without weights up to the cut-off. A batch's
// neighbours are among the remembered ones and the others of batches. Line 6 of
// the paper divides by r times the sum of similarities, whereas its text gives an item that all
// neighbours use the weight 1. This follows the text: weights are probabilities that are compared
// with sizes.
func (c *correlation) edges(batches []Batch) []edge {
	var all []edge
	weight := map[int32]float64{}
	for i, d := range batches {
		past := slices.Concat(c.lru, batches[:i], batches[i+1:])
		near := c.nearest(d, past)
		sum := 0.0
		clear(weight)
		for _, n := range near {
			sum += n.similarity // line 4
			for _, p := range past[n.batch].Updated {
				weight[p] += n.similarity // line 5
			}
		}
		for p, w := range weight {
			if w /= sum; w > c.cutoff { // lines 6 and 7
				all = append(all, edge{p, d.Machine, w})
			}
		}
	}
	slices.SortFunc(all, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.item, b.item), cmp.Compare(a.machine, b.machine), cmp.Compare(a.weight, b.weight))
	})
	return all
}

// A neighbor is a remembered batch and how similar it is.
type neighbor struct {
	batch      int // in past
	similarity float64
}

// nearest returns the r batches of past, which is oldest first, nearest to d; the nearest and newest
// first.
func (c *correlation) nearest(d Batch, past []Batch) []neighbor {
	all := make([]neighbor, len(past))
	for i, b := range past {
		all[i] = neighbor{i, 1 / distance(d.Pulled, b.Pulled)}
	}
	slices.SortFunc(all, func(a, b neighbor) int {
		return cmp.Or(cmp.Compare(b.similarity, a.similarity), cmp.Compare(b.batch, a.batch))
	})
	return all[:min(c.neighbors, len(all))]
}

// distance is the Euclidean distance of two ascending key sets as 0-1 vectors: the square root of
// the number of keys that only one of them has. For equal sets it is 0.5, so that it has a
// reciprocal.
func distance(a, b []int32) float64 {
	differ := 0
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] == b[0]:
			a, b = a[1:], b[1:]
		case a[0] < b[0]:
			a, differ = a[1:], differ+1
		default:
			b, differ = b[1:], differ+1
		}
	}
	if differ += len(a) + len(b); differ == 0 {
		return 0.5
	}
	return math.Sqrt(float64(differ))
}

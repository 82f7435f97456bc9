package best

import (
	"context"
	"slices"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/planner/partition"
)

// contract returns the hypergraph whose vertices are the clusters of h. Nets within one cluster
// become lone, and nets with equal pins become one.
func (h *hypergraph) contract(ctx context.Context, label []int32, clusters int) (*hypergraph, error) {
	first, members := membersOf(label, clusters)
	weight, lone := make([]int32, clusters), make([]int64, clusters)
	var home []int32
	if h.home != nil {
		home = make([]int32, clusters)
	}
	r := rows{
		start: make([]int, 1, clusters+1), pins: make([]uint32, 0, len(h.pins)),
		netWeight: h.netWeights(),
	}
	seen := make([]int32, h.nets) // 1 + the last cluster that pinned the net
	err := partition.EachPiece(ctx, clusters, func(from, to int) {
		for l := from; l < to; l++ {
			for _, v := range members[first[l]:first[l+1]] {
				weight[l] += h.weight[v]
				lone[l] += h.lone[v]
				if home != nil {
					home[l] = h.home[v]
				}
				for _, e := range h.row(int(v)) {
					// A net that several members pin is pinned once by the cluster.
					if seen[e] != int32(l)+1 {
						seen[e] = int32(l) + 1
						r.pins = append(r.pins, e)
					}
				}
			}
			r.start = append(r.start, len(r.pins))
		}
	})
	if err != nil {
		return nil, err
	}
	if err := r.mergeAlike(ctx); err != nil {
		return nil, err
	}
	return build(ctx, r, weight, lone, home)
}

// membersOf lists the vertices of each label: those of label l are members[first[l]:first[l+1]].
func membersOf(label []int32, labels int) (first []int, members []int32) {
	first = make([]int, labels+1)
	for _, l := range label {
		first[l+1]++
	}
	for l := range labels {
		first[l+1] += first[l]
	}
	next := slices.Clone(first[:labels])
	members = make([]int32, len(label))
	for v, l := range label {
		members[next[l]] = int32(v)
		next[l]++
	}
	return first, members
}

// mergeAlike merges nets that are pinned by the same vertices into one with their total weight.
// Coarse levels have many of them. Equal pins are recognized by a
// sum of 64-bit hashes; two different sets collide with a probability of 2^-64, which would only
// make the coarse level less exact.
func (r *rows) mergeAlike(ctx context.Context) error {
	degree, err := r.degrees(ctx)
	if err != nil {
		return err
	}
	m := len(r.netWeight)
	print := make([]uint64, m) // equal for equal sets of pins; for others with a chance of 2^-64
	err = partition.EachPiece(ctx, len(r.start)-1, func(from, to int) {
		for v := from; v < to; v++ {
			x := splitmix.Next(uint64(v))
			for _, e := range r.row(v) {
				print[e] += x
			}
		}
	})
	if err != nil {
		return err
	}
	var prints []uint64
	var nets []uint32
	for e, d := range degree {
		// Nets of one pin become lone in build.
		if d > 1 {
			prints = append(prints, print[e])
			nets = append(nets, uint32(e))
		}
	}
	partition.RadixSort(prints, nets)
	gone := make([]bool, m)
	for i := 0; i < len(nets); {
		sum := int64(r.netWeight[nets[i]])
		j := i + 1
		for ; j < len(nets) && prints[j] == prints[i]; j++ {
			sum += int64(r.netWeight[nets[j]])
			gone[nets[j]] = true
		}
		r.netWeight[nets[i]] = rounded(sum)
		i = j
	}
	return r.drop(ctx, gone)
}

// drop removes the pins of the marked nets.
func (r *rows) drop(ctx context.Context, gone []bool) error {
	out := 0
	err := partition.EachPiece(ctx, len(r.start)-1, func(from, to int) {
		for v := from; v < to; v++ {
			row := r.row(v)
			// Rows are compacted in place. A row is read before its start is overwritten, since
			// nothing moves to the right.
			r.start[v] = out
			for _, e := range row {
				if !gone[e] {
					r.pins[out] = e
					out++
				}
			}
		}
	})
	r.start[len(r.start)-1] = out
	r.pins = r.pins[:out]
	return err
}

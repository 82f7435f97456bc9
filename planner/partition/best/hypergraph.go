package best

import (
	"context"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/planner/partition"
)

// A hypergraph is what is annealed: vertices (samples, or clusters of them) that pin nets
// (parameters, or groups with equal pins). Nets are numbered so that equal weights are adjacent,
// and within a weight the most pinned come first: a row is then processed class by class, with its
// hot nets side by side in the cache.
//
// Nets that cost the same wherever the vertices lie, those of a single pin, are not nets here;
// their weight is in lone. A hypergraph is not changed once built.
type hypergraph struct {
	// n+1 offsets into pins.
	start []int
	pins  []uint32 // ascending within a vertex
	// By vertex, what it counts towards a block's limit.
	weight []int32
	// By vertex, the weight of the nets that no other vertex pins.
	lone []int64
	// By vertex, the block in which it must be, or -1; nil if all are free.
	home  []int32
	nets  int
	class []netClass
	// Parts of the nets with about equally many pins; see [cutsOf].
	cuts []uint32
}

// A netClass is a run of nets of one weight. It begins where the class before it ends.
type netClass struct {
	// The first net of the class with at most [fewPins] pins.
	few    uint32
	end    uint32
	weight int32
}

func (h *hypergraph) vertices() int { return len(h.start) - 1 }

func (h *hypergraph) row(v int) []uint32 { return h.pins[h.start[v]:h.start[v+1]] }

// heaviest returns the largest weight of a vertex.
func (h *hypergraph) heaviest() int32 { return slices.Max(h.weight) }

// netWeights returns the weight of each net, from the classes. It is a table of 4 bytes per net,
// made only while clustering.
func (h *hypergraph) netWeights() []int32 {
	weights := make([]int32, 0, h.nets)
	for _, class := range h.class {
		for len(weights) < int(class.end) {
			weights = append(weights, class.weight)
		}
	}
	return weights
}

// rows is a hypergraph under construction: any nets, in any order.
type rows struct {
	start     []int
	pins      []uint32 // no net twice within a vertex
	netWeight []int32
}

// build returns the hypergraph of r with its nets renumbered, without those that cost the same
// wherever the vertices lie: nets of one pin. It takes over r's pins, which are by
// far the largest part, and renumbers them in place.
func build(ctx context.Context, r rows, weight []int32, lone []int64, home []int32) (*hypergraph, error) {
	degree, err := r.degrees(ctx)
	if err != nil {
		return nil, err
	}
	h := &hypergraph{weight: weight, lone: lone, home: home}
	number := h.numberNets(r, degree)
	return h, h.renumber(ctx, r, number, degree)
}

// renumber takes over r's rows with the nets' new numbers. In parallel, each part of the vertices
// closes the gaps that dropped nets leave; then the parts are moved together.
func (h *hypergraph) renumber(ctx context.Context, r rows, number []int32, degree []uint32) error {
	n := len(h.weight)
	length := make([]int, n+1) // of the row before
	ends := make([]int, partition.LoopParts())
	begins := make([]int, partition.LoopParts())
	for part := range begins {
		// A part of no vertices is never called, and contributes nothing.
		begins[part] = -1
	}
	err := partition.ShareLoop(ctx, n, func(part, first, last int) {
		if begins[part] < 0 {
			begins[part], ends[part] = r.start[first], r.start[first]
		}
		to := ends[part]
		for v := first; v < last; v++ {
			from := to
			for _, e := range r.row(v) {
				if number[e] >= 0 {
					r.pins[to] = uint32(number[e])
					to++
				} else if degree[e] == 1 {
					h.lone[v] += int64(r.netWeight[e])
				}
			}
			// Rows are read class by class, in the order of the new numbers.
			slices.Sort(r.pins[from:to])
			length[v+1] = to - from
		}
		ends[part] = to
	})
	if err != nil {
		return err
	}
	h.pins = r.pins[:0]
	for part, from := range begins {
		if from >= 0 {
			h.pins = append(h.pins, r.pins[from:ends[part]]...) // never beyond from
		}
	}
	h.start = length
	for v := range n {
		h.start[v+1] += h.start[v]
	}
	return nil
}

func (r *rows) row(v int) []uint32 { return r.pins[r.start[v]:r.start[v+1]] }

// degrees returns the number of pins of each net. Each goroutine reads all pins and counts nets of
// its own, so no counter is shared.
func (r *rows) degrees(ctx context.Context) ([]uint32, error) {
	degree := make([]uint32, len(r.netWeight))
	nets := len(degree)
	return degree, eachPart(func(part, parts int) error {
		first := nets * part / parts
		own := degree[first : nets*(part+1)/parts]
		return partition.EachPiece(ctx, len(r.start)-1, func(from, to int) {
			for _, e := range r.pins[r.start[from]:r.start[to]] {
				// One comparison instead of two: a negative i becomes a large unsigned number.
				if i := int(e) - first; uint(i) < uint(len(own)) {
					own[i]++
				}
			}
		})
	})
}

// numberNets orders the nets that matter by weight and degree, sets the classes, and returns the
// new number of each old net, or -1.
func (h *hypergraph) numberNets(r rows, degree []uint32) []int32 {
	keys := make([]uint64, 0, len(degree)) // weight, then the most pinned first
	order := make([]uint32, 0, len(degree))
	number := make([]int32, len(degree))
	for e, d := range degree {
		number[e] = -1
		if d > 1 {
			order = append(order, uint32(e))
		}
	}
	key := func(e uint32) uint64 { return uint64(r.netWeight[e])<<32 | uint64(^degree[e]) }
	for _, e := range order {
		keys = append(keys, key(e))
	}
	// The complement of the degree sorts the most pinned nets first.
	partition.RadixSort(keys, order)
	h.nets = len(order)
	h.cuts = cutsOf(len(order), func(e int) int { return int(degree[order[e]]) })
	for i, e := range order {
		number[e] = int32(i)
		w := r.netWeight[e]
		if n := len(h.class); n == 0 || h.class[n-1].weight != w {
			h.class = append(h.class, netClass{weight: w, few: uint32(i)})
		}
		class := &h.class[len(h.class)-1]
		class.end = uint32(i) + 1
		if degree[e] > fewPins {
			class.few = class.end
		}
	}
	return number
}

// rounded returns w rounded to three significant bits, so that there are few classes of nets.
// Annealing needs no more precision; loads and owners are computed with exact weights.
func rounded(w int64) int32 {
	w = min(w, 1<<28)
	shift := max(0, bits.Len64(uint64(w))-3)
	if shift == 0 {
		return int32(w)
	}
	return int32((w + 1<<(shift-1)) >> shift << shift)
}

// transpose returns the vertices of each net in ascending order: those of net e are
// vertices[start[e]:start[e+1]].
func (h *hypergraph) transpose(ctx context.Context) (start []int, vertices []int32, err error) {
	start = make([]int, h.nets+1)
	err = partition.EachPiece(ctx, h.vertices(), func(from, to int) {
		for _, e := range h.pins[h.start[from]:h.start[to]] {
			start[e+1]++
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for e := range h.nets {
		start[e+1] += start[e]
	}
	next := slices.Clone(start[:h.nets])
	vertices = make([]int32, len(h.pins))
	err = partition.EachPiece(ctx, h.vertices(), func(from, to int) {
		for v := from; v < to; v++ {
			for _, e := range h.row(v) {
				vertices[next[e]] = int32(v)
				next[e]++
			}
		}
	})
	return start, vertices, err
}

package best

import (
	"context"
	"math/bits"
	"slices"

	"github.com/psidecar/psidecar/planner/partition"
)

// A hypergraph is what the annealing works on: vertices (samples, or clusters
// of them) that pin nets (parameters, or several alike). Nets are numbered so
// that equal weights stand together, within a weight the most pinned first: a
// row is then read class by class, its hot nets side by side in the cache.
type hypergraph struct {
	start  []int    // n+1 offsets into pins
	pins   []uint32 // ascending within a vertex
	weight []int32  // of vertices: what they count towards a block's limit
	lone   []int64  // of vertices: weight of the nets that nobody else pins
	home   []int32  // block that a vertex must lie in, or -1; nil: all are free
	nets   int
	class  []netClass
	cuts   []uint32 // parts of the nets with equally many pins, see [cutsOf]
	anchor []int32  // block that touches a net whatever its pins do, or -1; nil: none
}

// A netClass is a run of nets of one weight.
type netClass struct {
	few    uint32 // first net of the class with [fewPins] or fewer
	end    uint32 // first net beyond the class
	weight int32
}

func (h *hypergraph) vertices() int { return len(h.start) - 1 }

func (h *hypergraph) row(v int) []uint32 { return h.pins[h.start[v]:h.start[v+1]] }

// heaviest returns the largest weight of a vertex.
func (h *hypergraph) heaviest() int32 { return slices.Max(h.weight) }

// netWeights spreads the classes' weights over the nets.
func (h *hypergraph) netWeights() []int32 {
	weights := make([]int32, 0, h.nets)
	for _, class := range h.class {
		for len(weights) < int(class.end) {
			weights = append(weights, class.weight)
		}
	}
	return weights
}

// rows is a hypergraph in the making: nets in any order, and any of them.
type rows struct {
	start     []int
	pins      []uint32 // no net twice within a vertex
	netWeight []int32
	anchor    []int32 // as in hypergraph
}

// build numbers the nets of r again, without those that cost the same wherever
// the vertices lie: of one pin and no anchor. It takes over r's pins.
func build(ctx context.Context, r rows, weight []int32, lone []int64, home []int32) (*hypergraph, error) {
	degree, err := r.degrees(ctx)
	if err != nil {
		return nil, err
	}
	h := &hypergraph{weight: weight, lone: lone, home: home}
	number := h.numberNets(r, degree)
	return h, h.renumber(ctx, r, number, degree)
}

// renumber takes r's rows over: each part of the vertices closes up the gaps that left
// out nets leave, then the parts close up.
func (h *hypergraph) renumber(ctx context.Context, r rows, number []int32, degree []uint32) error {
	n := len(h.weight)
	length := make([]int, n+1) // of the row before
	ends := make([]int, partition.LoopParts())
	begins := make([]int, partition.LoopParts())
	for part := range begins {
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

// degrees returns the number of pins of each net: each part counts nets of its own, so
// that no counter is shared.
func (r *rows) degrees(ctx context.Context) ([]uint32, error) {
	degree := make([]uint32, len(r.netWeight))
	nets := len(degree)
	return degree, eachPart(func(part, parts int) error {
		first := nets * part / parts
		own := degree[first : nets*(part+1)/parts]
		return partition.EachPiece(ctx, len(r.start)-1, func(from, to int) {
			for _, e := range r.pins[r.start[from]:r.start[to]] {
				if i := int(e) - first; uint(i) < uint(len(own)) {
					own[i]++
				}
			}
		})
	})
}

// numberNets orders the nets that matter by weight and degree, fills in the
// classes, and returns each old net's new number, or -1.
func (h *hypergraph) numberNets(r rows, degree []uint32) []int32 {
	keys := make([]uint64, 0, len(degree)) // weight, then the most pinned first
	order := make([]uint32, 0, len(degree))
	number := make([]int32, len(degree))
	for e, d := range degree {
		number[e] = -1
		if d > 1 || d == 1 && r.anchor != nil && r.anchor[e] >= 0 {
			order = append(order, uint32(e))
		}
	}
	key := func(e uint32) uint64 { return uint64(r.netWeight[e])<<32 | uint64(^degree[e]) }
	for _, e := range order {
		keys = append(keys, key(e))
	}
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
	if r.anchor != nil {
		h.anchor = make([]int32, len(order))
		for i, e := range order {
			h.anchor[i] = r.anchor[e]
		}
	}
	return number
}

// rounded returns w to three significant bits, so that there are few classes
// of nets: the annealing needs no more, and nothing else uses it.
func rounded(w int64) int32 {
	w = min(w, 1<<28)
	shift := max(0, bits.Len64(uint64(w))-3)
	if shift == 0 {
		return int32(w)
	}
	return int32((w + 1<<(shift-1)) >> shift << shift)
}

// transpose returns the vertices of each net, in ascending order.
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

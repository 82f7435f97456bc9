package twostep

import "github.com/psidecar/psidecar/planner/graph"

// rows are the graph's samples with their parameters in another order: those that few samples use
// come first. What a machine has not covered is mostly among them, so a search for it can stop
// early.
type rows struct {
	start  []int64
	params []uint32
}

// newRows sorts all rows at once in O(E): it goes through the parameters, rare ones first, and
// appends each to the rows that have it.
func newRows(g *graph.Graph) *rows {
	r := &rows{start: make([]int64, g.Samples()+1), params: make([]uint32, g.Edges())}
	for s := range g.Samples() {
		r.start[s+1] = r.start[s] + int64(len(g.ParamsOf(s)))
	}
	at := append([]int64(nil), r.start[:g.Samples()]...)
	for _, p := range rareFirst(g) {
		for _, s := range g.SamplesOf(int(p)) {
			r.params[at[s]] = p
			at[s]++
		}
	}
	return r
}

// rareFirst returns the parameters in the order of their number of samples, by a counting sort.
func rareFirst(g *graph.Graph) []uint32 {
	place := make([]int, g.Samples()+2)
	for p := range g.Params() {
		place[len(g.SamplesOf(p))+1]++
	}
	for degree := range g.Samples() + 1 {
		place[degree+1] += place[degree]
	}
	order := make([]uint32, g.Params())
	for p := range g.Params() {
		degree := len(g.SamplesOf(p))
		order[place[degree]] = uint32(p)
		place[degree]++
	}
	return order
}

func (r *rows) of(s uint32) []uint32 { return r.params[r.start[s]:r.start[s+1]] }

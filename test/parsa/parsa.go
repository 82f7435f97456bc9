// Package parsa is a baseline to compare with: a greedy partitioner in the manner of Parsa (Li,
// Andersen, Smola, Graph Partitioning via Parallel Submodular Approximation, arXiv 1505.04636).
// Machines take turns; each takes the sample that brings it the fewest new parameters. Samples are
// processed in parts, so that the lists stay small; the parameters that machines have are kept from
// part to part. It takes a bit for each pair of machine and parameter.
package parsa

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// partSamples is how many samples make a part.
const partSamples = 100_000

// Partition is a [partition.Partitioner]. It balances the number of samples and honours fixed and
// grouped parameters; it fails if the result violates another constraint.
func Partition(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	n := g.Samples()
	a := &partition.Assignment{Samples: make([]int32, n)}
	has := make([][]uint64, o.K) // per machine: a bit for each parameter
	for i := range has {
		has[i] = make([]uint64, (g.Params()+63)/64)
	}
	// In the order of the data a part could be of one kind of sample only.
	order := rand.New(rand.NewPCG(o.Seed, 0)).Perm(n)
	turn := 0
	for from := 0; from < n; from += partSamples {
		p := newPart(g, order[from:min(from+partSamples, n)], has)
		for range len(p.samples) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			p.assign(turn, a.Samples)
			turn = (turn + 1) % o.K
		}
	}
	var err error
	if a.Params, err = partition.OwnersAtUsers(ctx, g, a.Samples, o); err != nil {
		return nil, err
	}
	if err := partition.Check(g, a, o); err != nil {
		return nil, fmt.Errorf("this baseline only balances samples: %w", err)
	}
	return a, nil
}

// A part is the state of the greedy choice among some samples. The lists of all machines hold the
// same samples, those that are not assigned yet.
type part struct {
	g       *graph.Graph
	samples []int
	// By sample, its position in samples, or -1.
	index []int32
	has   [][]uint64
	// By machine, the samples by how many parameters they would add.
	lists []list
}

// newPart enters all samples of a part in the lists of all machines, with their cost at this
// moment.
func newPart(g *graph.Graph, samples []int, has [][]uint64) *part {
	p := &part{g: g, samples: samples, index: slices.Repeat([]int32{-1}, g.Samples()), has: has}
	for u, s := range samples {
		p.index[s] = int32(u)
	}
	for i := range has {
		l := newList(len(samples))
		for u, s := range samples {
			l.insert(int32(u), p.fresh(i, s))
		}
		p.lists = append(p.lists, l)
	}
	return p
}

// fresh returns |N(s) \ S_i|, the number of parameters of sample s that machine i does not have.
func (p *part) fresh(i, s int) int {
	n := 0
	for _, e := range p.g.ParamsOf(s) {
		if p.has[i][e/64]>>(e%64)&1 == 0 {
			n++
		}
	}
	return n
}

// assign gives machine i its cheapest sample.
func (p *part) assign(i int, machine []int32) {
	u := p.lists[i].cheapest()
	for j := range p.lists {
		p.lists[j].remove(u)
	}
	s := p.samples[u]
	machine[s] = int32(i)
	for _, e := range p.g.ParamsOf(s) {
		if p.has[i][e/64]>>(e%64)&1 != 0 {
			continue
		}
		// The parameter is no longer new to the machine, so all samples that use it have become
		// cheaper for it.
		p.has[i][e/64] |= 1 << (e % 64)
		for _, other := range p.g.SamplesOf(int(e)) {
			// Samples of other parts have their costs computed when their part begins.
			if v := p.index[other]; v >= 0 {
				p.lists[i].decrement(v)
			}
		}
	}
}

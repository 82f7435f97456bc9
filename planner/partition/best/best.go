// Package best is psidecar's own partitioner of samples and parameters. [Partition] returns an
// assignment whose total traffic is as low as annealing makes it, and whose busiest machine is, if
// that is possible, at the bound max = 2 x total / k.
//
// # Method
//
// Samples become the vertices and parameters the nets of a hypergraph (reduce.go, hypergraph.go).
// It is coarsened by joining samples that share rare parameters (coarsen.go, contract.go). From the
// coarsest level to the finest (solve.go) a partition is annealed by sweeps in which each vertex
// draws its block, that is its machine, from a heat bath (anneal.go): the cost of a block is the
// weight of the nets that the vertex would bring it anew, counted for all blocks at once
// (tally.go), times the block's price, plus its rent. Prices keep every block's unavoidable traffic
// below its due; rents keep the blocks full without refusals (price.go, settle.go). Finally package
// partition finds owners for the parameters.
//
// # State
//
// A state is the assignment with counts from which the cost of a move is known without looking at
// another vertex (state.go, counts.go). An annealer improves a state by sweeps with a team of
// goroutines (team.go), and can begin from an earlier assignment (renew.go, stays.go).
//
// # Determinism
//
// Without a time budget the work is a function of the graph's size, and the result a function of
// graph, options and seed, whatever the number of cores and their speed: members of a team decide
// from the state as it was before a batch, and write to disjoint nets. With a budget the schedule
// follows the clock, so two runs differ.
package best

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// The work that is done without a time budget, in pins looked at: workAlways, some seconds, and
// workPerEdge more for each of the first edges; in ever larger graphs at least workAtLeast for each
// edge; and at most mostSweeps sweeps of a small one.
const (
	workAlways  = 3_600_000_000
	workPerEdge = 250
	firstEdges  = 2_000_000
	workAtLeast = 120
	mostSweeps  = 4000
	// From enoughSweeps on, clusters are not made. They save time, but what they decide first may
	// be a poor start that no later sweep leaves, most of all in graphs without structure.
	enoughSweeps = 2000
	// collectFrom is how many edges a graph has whose working memory is collected between phases.
	// That takes time, but the collector by itself would wait until the heap has doubled.
	collectFrom = 1 << 20
	// workPerSecond is about the work that two cores do.
	workPerSecond = 400_000_000
)

// Partition is a [partition.Partitioner]. It is an anytime algorithm: the longer the budget, the
// slower the annealing and the better the result. Small graphs are annealed from several starts,
// and compared with the papers' algorithms (small.go).
func Partition(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	work := max(workAlways+workPerEdge*min(g.Edges(), firstEdges), workAtLeast*g.Edges())
	work = min(work, mostSweeps*sweepWork(g, o.K))
	var all []partition.Partitioner
	quick := others(g)
	for start := range uint64(max(1, min(mostStarts, fewStarts/work))) {
		all = append(all, func(ctx context.Context, g *graph.Graph, o partition.Options) (*partition.Assignment, error) {
			// Start 0 has the seed itself, so that its result does not depend on the number of
			// starts.
			o.Seed ^= start << 32
			return divide(ctx, g, o, work, runtime.GOMAXPROCS(0))
		})
		if o.Budget > 0 {
			break // all of it for one
		}
	}
	// Other starts and algorithms would not stay near the earlier assignment.
	if o.From != nil || len(all)+len(quick) == 1 {
		return divide(ctx, g, o, work, runtime.GOMAXPROCS(0))
	}
	first := all[0]
	all[0] = func(ctx context.Context, g *graph.Graph, _ partition.Options) (*partition.Assignment, error) {
		return first(ctx, g, o)
	}
	asked := o
	asked.Progress = nil
	return ask(ctx, g, asked, append(all, quick...))
}

// sweepWork returns the work of one sweep, in pins.
func sweepWork(g *graph.Graph, k int) int64 {
	return g.Edges() + int64(g.Samples()*(visitWork+k))
}

// divide does the given amount of work, unless o has a budget, with a team of that many members. It
// begins from o.From, if that is set.
func divide(ctx context.Context, g *graph.Graph, o partition.Options, work int64, members int) (*partition.Assignment, error) {
	if err := o.Validate(g); err != nil {
		return nil, err
	}
	c := &clock{began: time.Now(), budget: o.Budget, all: work, progress: o.Progress}
	t := newTeam(members)
	defer t.close()
	if o.Budget > 0 {
		work = int64(o.Budget.Seconds() * workPerSecond)
	}
	o.Begin("reduce")
	h, samples, err := reduce(ctx, g, o)
	if err != nil {
		return nil, err
	}
	flat := work >= enoughSweeps*sweepWork(g, o.K)
	l := limitsOf(g, h, o)
	job := job{h: h, flat: flat, o: o, limits: l, team: t, clock: c}
	if o.From != nil {
		job.was = make([]int32, len(samples))
		for v, s := range samples {
			job.was[v] = o.From.Samples[s]
		}
	}
	var block []int32
	switch {
	// The smallest word that holds a bit per block keeps the cells of most nets in the cache.
	case o.K <= 8:
		block, err = blocks[uint8](ctx, job)
	case o.K <= 16:
		block, err = blocks[uint16](ctx, job)
	case o.K <= 32:
		block, err = blocks[uint32](ctx, job)
	default:
		block, err = blocks[uint64](ctx, job)
	}
	// The hypergraph is the largest table, and placing the owners needs the memory.
	job.h = nil
	t.close()
	if err != nil {
		return nil, err
	}
	a := &partition.Assignment{Samples: make([]int32, g.Samples())}
	for v, s := range samples {
		a.Samples[s] = block[v]
	}
	o.Begin("owners")
	if g.Edges() > collectFrom {
		runtime.GC() // the hypergraph and its state, before as much is taken again
	}
	if a.Params, err = partition.FlatOwners(ctx, g, a.Samples, o); err != nil {
		return nil, err
	}
	o.Begin("check")
	if err := partition.Check(g, a, o); err != nil {
		return nil, fmt.Errorf("no assignment found that meets the constraints: %w", err)
	}
	if o.Progress != nil {
		o.Progress(1)
	}
	return a, nil
}

// A job is the input of a solver.
type job struct {
	h *hypergraph
	// By vertex, its block in o.From, or -1; nil without o.From.
	was []int32
	// flat anneals the hypergraph itself, without clusters.
	flat   bool
	o      partition.Options
	limits limits
	team   *team
	clock  *clock
}

// mayMove returns how many of the vertices in the earlier assignment may move.
func (j *job) mayMove() int {
	known := 0
	for _, b := range j.was {
		if b >= 0 {
			known++
		}
	}
	return int(j.o.MoveAtMost * float64(known))
}

// blocks returns the block of each vertex of j.h. T is the smallest word that has a bit for each
// block, up to 64; larger k take several words.
func blocks[T word](ctx context.Context, j job) ([]int32, error) {
	s := &solver[T]{
		k: j.o.K, limits: j.limits, team: j.team, clock: j.clock, begin: j.o.Begin,
		seed: j.o.Seed, tariff: newTariff(j.o.K), flat: j.flat,
	}
	var st *state[T]
	var err error
	if j.was != nil {
		st, err = s.renew(ctx, j.h, j.was, j.mayMove())
	} else {
		st, err = s.solve(ctx, j.h)
	}
	if err != nil {
		return nil, err
	}
	// Annealing keeps the limits with some slack; now they must hold exactly.
	if err := s.balance(st); err != nil {
		return nil, err
	}
	if err := s.meetTheta(ctx, st); err != nil {
		return nil, err
	}
	return st.block, nil
}

// limitsOf returns the limits of the blocks. A machine may exceed its even share of the samples'
// weight by less than the heaviest of them; see [partition.Options.SampleLimits].
func limitsOf(g *graph.Graph, h *hypergraph, o partition.Options) limits {
	l := limits{size: o.SampleLimits(g), share: make([]float64, o.K), theta: o.Theta}
	var all float64
	for b := range l.share {
		l.size[b] += int64(h.heaviest()) - 1
		l.share[b] = 1
		if o.Speed != nil {
			l.share[b] = o.Speed[b]
		}
		all += l.share[b]
	}
	for b := range l.share {
		l.share[b] /= all
	}
	return l
}

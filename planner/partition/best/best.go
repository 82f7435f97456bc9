// Package best is psidecar's own partitioner of samples and parameters. A graph
// and options go in, an assignment comes out whose total traffic is as low as
// annealing makes it and whose busiest machine is, where that can be, at the
// bound max = 2 x total / k. The table of algorithms calls it.
//
// Samples become the vertices and parameters the nets of a hypergraph
// (reduce.go), which is coarsened by joining samples that share rare parameters
// (coarsen.go, contract.go). From the coarsest level to the finest (solve.go), a
// partition is annealed by sweeps in which each vertex draws its block from a
// heat bath (anneal.go): what it costs there, in new parameters, counted for all
// blocks at once (tally.go), times the block's price, plus its rent. Prices keep
// every machine's unavoidable traffic below its due, rents keep the blocks full
// without refusals (price.go, settle.go). Package owner then finds owners
// for the parameters.
//
// Without a time budget, the work is a function of the graph's size, and the
// outcome one of the graph, the options and the seed, whatever the number of
// cores and their speed. With a budget the schedule follows the clock, so that
// two runs differ.
package best

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// The work that is done where no time budget is given, in pins looked at: some
// seconds, and workPerEdge more for each of the first edges; for ever larger
// graphs, that each still gets workAtLeast; and no more than mostSweeps over a
// small one.
const (
	workAlways  = 3_600_000_000
	workPerEdge = 250
	firstEdges  = 2_000_000
	workAtLeast = 120
	mostSweeps  = 4000
	// Where so many sweeps can be had, clusters are not wanted: they save time,
	// but what they decide first may be a poor start that no later sweep leaves,
	// in graphs without structure most of all.
	enoughSweeps = 2000
	// collectFrom is how many edges a graph has whose working memory is given back
	// between phases, which takes time; the collector waits until it doubles.
	collectFrom = 1 << 20
	// workPerSecond is about what two cores do.
	workPerSecond = 400_000_000
)

// Partition is a [partition.Partitioner]. It is an anytime algorithm: the
// longer the budget, the slower the annealing and the better the outcome.
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
			o.Seed ^= start << 32
			return divide(ctx, g, o, work, runtime.GOMAXPROCS(0))
		})
		if o.Budget > 0 {
			break // all of it for one
		}
	}
	fresh := func(k *keeping) (*partition.Assignment, error) {
		if o.From != nil || len(all)+len(quick) == 1 {
			return divideFrom(ctx, g, o, work, runtime.GOMAXPROCS(0), nil, k)
		}
		first := all[0]
		all[0] = func(ctx context.Context, g *graph.Graph, _ partition.Options) (*partition.Assignment, error) {
			return first(ctx, g, o)
		}
		asked := o
		asked.Progress = nil
		return ask(ctx, g, asked, append(all, quick...))
	}
	if o.Keeper != nil {
		return keepGoing(ctx, g, o, work, runtime.GOMAXPROCS(0), fresh)
	}
	return fresh(nil)
}

// sweepWork is the work of looking at every vertex once.
func sweepWork(g *graph.Graph, k int) int64 {
	return g.Edges() + int64(g.Samples()*(visitWork+k))
}

// divide spends the given work, where o has no budget, with a team of members.
func divide(ctx context.Context, g *graph.Graph, o partition.Options, work int64, members int) (*partition.Assignment, error) {
	return divideFrom(ctx, g, o, work, members, nil, nil)
}

// divideFrom is divide from the samples' machines start, or o.From's where that
// is nil; what k has kept goes before both.
func divideFrom(ctx context.Context, g *graph.Graph, o partition.Options, work int64, members int, start []int32, k *keeping) (*partition.Assignment, error) {
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
	job := job{h: h, flat: flat, o: o, limits: l, team: t, clock: c, keep: k}
	job.startFrom(samples, start)
	var block []int32
	switch {
	case o.K <= 8:
		block, err = blocks[uint8](ctx, job)
	case o.K <= 16:
		block, err = blocks[uint16](ctx, job)
	case o.K <= 32:
		block, err = blocks[uint32](ctx, job)
	default:
		block, err = blocks[uint64](ctx, job)
	}
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

// A job is all that a solver needs.
type job struct {
	h      *hypergraph
	start  []int32 // block to begin with of each vertex, or -1; nil: from nothing
	was    []int32 // block of each vertex in o.From, or -1
	flat   bool    // without clusters
	o      partition.Options
	limits limits
	team   *team
	clock  *clock
	keep   *keeping
}

// startFrom sets where the vertices start and were, from the sample that each
// is and the samples' machines, nil for o.From's.
func (j *job) startFrom(samples []int, machines []int32) {
	ofSamples := func(list []int32) []int32 {
		blocks := make([]int32, len(samples))
		for v, s := range samples {
			blocks[v] = -1
			if list != nil {
				blocks[v] = list[s]
			}
		}
		return blocks
	}
	var from []int32
	if j.o.From != nil {
		from = j.o.From.Samples
	}
	if from == nil && machines == nil {
		return
	}
	j.was = ofSamples(from)
	if j.start = j.was; machines != nil {
		j.start = ofSamples(machines)
	}
}

// mayMove returns how many of the vertices that were somewhere may move.
func (j *job) mayMove() int {
	known := 0
	for _, b := range j.was {
		if b >= 0 {
			known++
		}
	}
	return int(j.o.MoveAtMost * float64(known))
}

// blocks returns the block of each vertex of j.h.
func blocks[T word](ctx context.Context, j job) ([]int32, error) {
	s := &solver[T]{
		k: j.o.K, limits: j.limits, team: j.team, clock: j.clock, begin: j.o.Begin,
		seed: j.o.Seed, tariff: newTariff(j.o.K), flat: j.flat, keep: j.keep,
	}
	var st *state[T]
	var err error
	if j.start != nil {
		st, err = s.renew(ctx, j.h, j.start, j.was, j.mayMove())
	} else {
		st, err = s.solve(ctx, j.h)
	}
	if err != nil {
		return nil, err
	}
	if err := s.balance(st); err != nil {
		return nil, err
	}
	if err := s.meetTheta(ctx, st); err != nil {
		return nil, err
	}
	return st.block, nil
}

// limitsOf returns the limits of the blocks. A machine may exceed its even
// share of the samples' weight by less than the heaviest of them, see
// [partition.Check].
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

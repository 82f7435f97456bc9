package best

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// mostClusters and leastClusters bound the number of clusters per block at the coarsest level,
	// and so how large a part of a block's limit one cluster may be. Between them a cluster has
	// about clusterSize samples.
	mostClusters, leastClusters, clusterSize = 160, 10, 8
	// shrink is by which factor the number of vertices falls from level to level.
	shrink = 2.5
	// A level ends at this fraction of the temperature at which it began. The coarsest, which
	// starts from a random assignment, cools further than the levels that refine it.
	coolCoarsest, coolMiddle, coolFinest, coolOnly = 1. / 20, 1. / 2, 1. / 4, 1. / 40
	// A single level starts this factor above the temperature at which everything has melted.
	// Without clusters to start with, vertices that belong together find each other while it is
	// still hot.
	heatOnly = 1.1
	// The fractions of the budget for the coarsest and the finest level, and that at which all
	// annealing ends.
	partCoarsest, partFinest, annealingEnds = 0.2, 0.55, 0.97
	// If the first clusters have more than this fraction of their members' pins, these share so
	// little that clusters are no start: to anneal all levels then costs more than it gains.
	unshared = 0.95
	// If a sample of the vertices saves less than this fraction of its pins, no clusters are made
	// at all. If little is shared, the estimate is up to 1.6 times what they save.
	littleShared = 0.07
	// In the last part of the finest level, from quenchFrom on, the temperature is lowered by the
	// factor quench: heat then only keeps vertices away from where they belong.
	quenchFrom, quench = 0.95, 0.1
)

// A clock measures which fraction of the budget is spent: of time, if a time budget was given, else
// of work, so that the result does not depend on the machine's speed.
type clock struct {
	began    time.Time
	budget   time.Duration // 0: count work
	work     int64
	all      int64
	progress func(float64)
}

// spent returns the fraction, which may exceed 1.
func (c *clock) spent() float64 {
	if c.budget > 0 {
		return float64(time.Since(c.began)) / float64(c.budget)
	}
	return float64(c.work) / float64(c.all)
}

// A level is a hypergraph, and how its vertices became those of the next, coarser one.
type level struct {
	h *hypergraph
	// By vertex, its vertex in the next level; nil at the coarsest.
	label []int32
}

// coarsen returns ever coarser levels of h, beginning with h. It stops when the vertices are few,
// or share too little.
func coarsen(ctx context.Context, h *hypergraph, k int, t *team) ([]level, error) {
	var all int64
	for _, w := range h.weight {
		all += int64(w)
	}
	coarsest := k * min(mostClusters, max(leastClusters, h.vertices()/(clusterSize*k)))
	heaviest := int32(max(all/int64(coarsest), 1))
	levels := []level{{h: h}}
	saved, err := h.savedByClusters(ctx, heaviest)
	if err != nil {
		return nil, err
	}
	if saved < littleShared {
		return levels, nil
	}
	for {
		last := &levels[len(levels)-1]
		n := last.h.vertices()
		want := max(coarsest, int(float64(n)/shrink))
		if n < coarsest*3/2 {
			return levels, nil
		}
		label, clusters, err := last.h.cluster(ctx, t, heaviest, want)
		if err != nil {
			return nil, err
		}
		if float64(clusters) > 0.9*float64(n) {
			return levels, nil // the rest has nothing in common, or is too heavy to join
		}
		coarser, err := last.h.contract(ctx, label, clusters)
		if err != nil {
			return nil, err
		}
		if len(levels) == 1 && float64(len(coarser.pins)) > unshared*float64(len(h.pins)) {
			return levels, nil
		}
		last.label = label
		levels = append(levels, level{h: coarser})
	}
}

// A solver assigns the vertices of a hypergraph to blocks. One solver is used for one run; the
// tariff carries the prices from level to level.
type solver[T word] struct {
	k      int
	limits limits
	team   *team
	clock  *clock
	begin  func(phase string)
	seed   uint64
	tariff *tariff
	// flat anneals without clusters.
	flat bool
}

// solve returns the blocks of h's vertices: annealed at once if flat, else level by level.
func (s *solver[T]) solve(ctx context.Context, h *hypergraph) (*state[T], error) {
	levels := []level{{h: h}}
	if !s.flat {
		var err error
		s.begin("coarsen")
		if levels, err = coarsen(ctx, h, s.k, s.team); err != nil {
			return nil, err
		}
	}
	last := len(levels) - 1
	block := scatter(levels[last].h, s.limits.size, rand.New(rand.NewPCG(s.seed, 2)))
	var st *state[T]
	for i := last; i >= 0; i-- {
		if i < last {
			block = project(block, levels[i].label)
		}
		s.begin(fmt.Sprintf("count level %d", i))
		var err error
		if st, err = newState[T](ctx, levels[i].h, s.k, block); err != nil {
			return nil, err
		}
		until, cool := s.schedule(i, last)
		s.begin(fmt.Sprintf("anneal level %d", i))
		if err := s.anneal(ctx, st, i == last, i == 0, until, cool); err != nil {
			return nil, err
		}
		block = st.block
		// The coarser level is not needed any more; its memory is for the finer one.
		levels[i] = level{}
	}
	return st, nil
}

// schedule returns the fraction of the budget at which level i ends, and the fraction of its
// initial temperature at which it should then be. last is the coarsest level.
func (s *solver[T]) schedule(i, last int) (until, cool float64) {
	// With a time budget coarsening has used some of it, so what is left is divided again at each
	// level.
	left := annealingEnds - s.clock.spent()
	switch {
	case i == 0 && last == 0:
		return annealingEnds, coolOnly
	case i == 0:
		return annealingEnds, coolFinest
	case i == last:
		return s.clock.spent() + left*partCoarsest, coolCoarsest
	}
	// What is left now is for the i levels in the middle and the finest.
	middle := (1 - partCoarsest - partFinest) / float64(last-1)
	return s.clock.spent() + left*middle/(middle*float64(i)+partFinest), coolMiddle
}

// scatter returns random blocks, filled evenly relative to their limits. Vertices with a home are
// there.
func scatter(h *hypergraph, size []int64, rng *rand.Rand) []int32 {
	block := make([]int32, h.vertices())
	load := make([]int64, len(size))
	for v := range block {
		if h.home != nil && h.home[v] >= 0 {
			block[v] = h.home[v]
			load[block[v]] += int64(h.weight[v])
		}
	}
	for _, v := range rng.Perm(len(block)) {
		if h.home != nil && h.home[v] >= 0 {
			continue
		}
		emptiest, room := 0, math.Inf(-1)
		for b := range size {
			if r := 1 - float64(load[b]+int64(h.weight[v]))/float64(max(size[b], 1)); r > room {
				emptiest, room = b, r
			}
		}
		block[v] = int32(emptiest)
		load[emptiest] += int64(h.weight[v])
	}
	return block
}

// project returns the blocks of a level's vertices, given those of the next coarser one.
func project(block, label []int32) []int32 {
	fine := make([]int32, len(label))
	for v, l := range label {
		fine[v] = block[l]
	}
	return fine
}

// anneal cools st to the fraction cool of the temperature at which it starts. That is where
// everything melts for a random assignment, else where a sweep neither loses what st has nor
// freezes it.
func (s *solver[T]) anneal(ctx context.Context, st *state[T], random, last bool, until, cool float64) error {
	a := newAnnealer(st, s.slack(st.h), s.tariff, s.team, s.seed)
	p := a.probe()
	hot := p.steady()
	if random {
		hot = p.melting()
	}
	if random && last {
		hot *= heatOnly
	}
	c := cooling{hot: hot, cool: cool, last: last, byWish: random && last && !s.flat}
	if c.byWish {
		// Cooling by wishes needs less of the work, so the clock runs faster.
		s.clock.all = int64(workByWish * float64(s.clock.all))
	}
	return s.coolDown(ctx, a, &c, s.clock.spent(), until)
}

// coolDown sweeps while the spent fraction of the budget is between from and until, and at the
// finest level goes on until the loads are level.
func (s *solver[T]) coolDown(ctx context.Context, a *annealer[T], c *cooling, from, until float64) error {
	temp := c.hot
	for spent := s.clock.spent(); spent < until; spent = s.clock.spent() {
		if s.clock.progress != nil {
			s.clock.progress(spent)
		}
		before := a.work
		temp = c.next((spent-from)/(until-from), a.wish)
		if err := a.sweep(ctx, temp); err != nil {
			return err
		}
		s.clock.work += a.work - before
	}
	if c.last {
		s.begin("flatten")
		return s.level(ctx, a, temp)
	}
	return nil
}

// levelSweeps is how many more sweeps may be spent on levelling the loads, levelGain how fast
// prices then rise, and levelEnough by which fraction a block may carry more than its due in the
// end.
const (
	levelSweeps, levelGain, levelEnough = 30, 0.5, 0.02
)

// level continues to sweep while some block carries more than its due, raising its price each time:
// if sweeps were few, prices have come late. It leaves the assignment whose busiest block carries
// the least.
func (s *solver[T]) level(ctx context.Context, a *annealer[T], temp float64) error {
	var kept []int32
	least := math.Inf(1)
	for i := range levelSweeps {
		if s.clock.progress != nil { // it ends when the loads are level, at the latest with the last
			s.clock.progress(annealingEnds + (1-annealingEnds)*float64(i)/levelSweeps)
		}
		worst := a.raisePrices(levelGain)
		// Prices that level the loads also raise the total, so the busiest block's load is
		// compared, not its excess.
		if peak := (1 + worst) * float64(a.cost.total); peak < least {
			least = peak
			kept = append(kept[:0], a.block...)
		}
		if worst < levelEnough || s.clock.budget > 0 && s.clock.spent() >= 1 {
			break
		}
		if err := a.sweep(ctx, temp); err != nil {
			return err
		}
	}
	// The sweeps since have not helped.
	for v, b := range kept {
		if a.block[v] != b {
			a.relocate(v, int(b))
		}
	}
	return nil
}

// slack returns limits with room for one more cluster in each block: clusters rarely fill a block
// exactly, and need not before the finest level.
func (s *solver[T]) slack(h *hypergraph) limits {
	l := s.limits
	if heaviest := int64(h.heaviest()); heaviest > 1 {
		l.size = make([]int64, s.k)
		for b := range l.size {
			l.size[b] = s.limits.size[b] + heaviest
		}
	}
	return l
}

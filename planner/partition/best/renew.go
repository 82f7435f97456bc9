package best

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// workToRenew is the fraction of the work of a fresh run that is done when continuing from an
	// earlier assignment.
	workToRenew = 0.22
	// Vertices that the earlier assignment lacks are placed first, while all others stay, in
	// placeSweeps sweeps that begin and end at these fractions of the melting temperature.
	placeSweeps          = 8
	placeHot, placeCool  = 0.3, 0.015
	renewCool, stayPrice = 1. / 8, 1.5 // price of leaving, by the first temperature
)

// renew anneals from the earlier blocks in was, where -1 is none, and returns the state. At most
// mayMove of the vertices that have one end up elsewhere, unless limits require more.
func (s *solver[T]) renew(ctx context.Context, h *hypergraph, was []int32, mayMove int) (*state[T], error) {
	s.begin("place")
	block := fillUp(h, was, s.limits.size, rand.New(rand.NewPCG(s.seed, 2)))
	st, err := newState[T](ctx, h, s.k, block)
	if err != nil {
		return nil, err
	}
	if err := s.balance(st); err != nil { // limits may be others than they were
		return nil, err
	}
	a := newAnnealer(st, s.limits, s.tariff, s.team, s.seed)
	// Vertices that balance had to move count as moved already.
	a.stays = newStays(was, st.block, mayMove)
	if err := s.place(ctx, a); err != nil {
		return nil, err
	}
	s.clock.all = max(1, int64(workToRenew*float64(s.clock.all)))
	s.begin("renew")
	p := a.probe()
	c := cooling{hot: p.steady(), cool: renewCool, last: true}
	a.stays.price = float32(stayPrice * c.hot)
	return st, s.coolDown(ctx, a, &c, s.clock.spent(), annealingEnds)
}

// place finds blocks for the vertices without an earlier block while the others stay. It does
// nothing if there are no such vertices, or no others.
func (s *solver[T]) place(ctx context.Context, a *annealer[T]) error {
	a.stays.hold = true
	defer func() { a.stays.hold = false }()
	if !slices.Contains(a.stays.was, -1) || !slices.ContainsFunc(a.stays.was, func(b int32) bool { return b >= 0 }) {
		return nil
	}
	p := a.probe()
	if len(p.own) == 0 {
		return nil
	}
	hot := p.melting()
	for i := range placeSweeps {
		x := float64(i) / (placeSweeps - 1)
		if err := a.sweep(ctx, hot*placeHot*math.Pow(placeCool/placeHot, x)); err != nil {
			return err
		}
	}
	return nil
}

// fillUp returns the earlier blocks. Vertices without one go to the emptiest block relative to its
// limit, in random order; place then finds better ones.
func fillUp(h *hypergraph, was []int32, size []int64, rng *rand.Rand) []int32 {
	homes := make([]int32, len(was))
	for v, b := range was {
		homes[v] = b
		if h.home != nil && h.home[v] >= 0 {
			homes[v] = h.home[v]
		}
	}
	filled := *h
	filled.home = homes
	return scatter(&filled, size, rng)
}

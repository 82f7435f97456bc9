package best

import (
	"context"
	"math"
	"math/rand/v2"
)

const (
	// workToRenew is the part of the work of a fresh run that one takes which goes
	// on from an earlier assignment.
	workToRenew = 0.22
	// Vertices that the earlier assignment lacks find their blocks while all
	// others stay, in placeSweeps that begin and end at these parts of where
	// everything melts.
	placeSweeps          = 8
	placeHot, placeCool  = 0.3, 0.015
	renewCool, stayPrice = 1. / 8, 1.5 // price of leaving, by the first temperature
)

// renew returns the blocks of h's vertices near those where they were, -1 for
// new ones, of which at most mayMove are elsewhere then unless limits ask it.
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
	a.stays = newStays(was, st.block, mayMove)
	a.stays.hold = true
	if p := a.probe(); len(p.own) > 0 {
		hot := p.melting()
		for i := range placeSweeps {
			x := float64(i) / (placeSweeps - 1)
			if err := a.sweep(ctx, hot*placeHot*math.Pow(placeCool/placeHot, x)); err != nil {
				return nil, err
			}
		}
	}
	a.stays.hold = false
	if s.clock.all = int64(workToRenew * float64(s.clock.all)); s.clock.all == 0 {
		s.clock.all = 1
	}
	s.begin("renew")
	p := a.probe()
	c := cooling{Hot: p.steady(), Cool: renewCool, Last: true}
	a.stays.price = float32(stayPrice * c.Hot)
	return st, s.coolDown(ctx, a, &c, annealingEnds)
}

// fillUp returns the blocks where the vertices were; those that were nowhere go
// to the emptiest by its limit, in random order.
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

package best

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// An exit is a vertex that may leave an overfull block, and what its move would cost per unit of
// weight.
type exit struct {
	v    int32
	cost float32
}

// balance moves vertices out of blocks that hold more than their limit, those with the least cost
// first. It fails if the fixed vertices leave no room.
func (s *solver[T]) balance(st *state[T]) error {
	var p planes[T]
	hits := make([]float32, s.k)
	for b := range s.k {
		for st.size[b] > s.limits.size[b] {
			before := st.size[b]
			for _, e := range s.exits(st, b, &p, hits) {
				if st.size[b] <= s.limits.size[b] {
					break
				}
				if to, _ := s.cheapestRoom(st, int(e.v), &p, hits); to >= 0 {
					st.relocate(int(e.v), to)
				}
			}
			// A pass without a move: everything left in the block is fixed, or no other block has
			// room.
			if st.size[b] == before {
				return fmt.Errorf("machine %d keeps samples of weight %d, more than %d: those fixed to others leave no room for the rest", b, before, s.limits.size[b])
			}
		}
	}
	return nil
}

// exits lists the vertices that may leave block b, cheapest first.
func (s *solver[T]) exits(st *state[T], b int, p *planes[T], hits []float32) []exit {
	var exits []exit
	for v, at := range st.block {
		if int(at) != b || st.h.home != nil && st.h.home[v] >= 0 {
			continue
		}
		if to, cost := s.cheapestRoom(st, v, p, hits); to >= 0 {
			exits = append(exits, exit{int32(v), cost / float32(st.h.weight[v])})
		}
	}
	slices.SortFunc(exits, func(x, y exit) int {
		return cmp.Or(cmp.Compare(x.cost, y.cost), cmp.Compare(x.v, y.v))
	})
	return exits
}

// cheapestRoom returns the block with room for v in which v would cost least, or -1, and how much
// more that is than where v is now.
func (s *solver[T]) cheapestRoom(st *state[T], v int, p *planes[T], hits []float32) (to int, cost float32) {
	st.hits(v, p, hits)
	to = -1
	own := int(st.block[v])
	for b, hit := range hits {
		if b == own || st.size[b]+int64(st.h.weight[v]) > s.limits.size[b] {
			continue
		}
		if c := hits[own] - hit; to < 0 || c < cost {
			to, cost = b, c
		}
	}
	return to, cost
}

// thetaSweeps is how many more sweeps may be spent on meeting theta.
const thetaSweeps = 200

// meetTheta continues to sweep, ever colder, until no block uses more than theta allows. It fails
// after thetaSweeps, with the value reached: that is no proof that there is no solution.
func (s *solver[T]) meetTheta(ctx context.Context, st *state[T]) error {
	if s.limits.theta == 0 || slices.Max(st.cost.used) <= s.limits.theta {
		return nil
	}
	a := newAnnealer(st, s.limits, s.tariff, s.team, s.seed+1)
	for i := range thetaSweeps {
		if err := a.sweep(ctx, 0.5/float64(1+i/20)); err != nil {
			return err
		}
		if slices.Max(st.cost.used) <= s.limits.theta {
			return s.balance(st)
		}
	}
	return fmt.Errorf("no assignment found in which each machine uses parameters of weight theta = %d or less: one uses %d; increase theta or the time budget", s.limits.theta, slices.Max(st.cost.used))
}

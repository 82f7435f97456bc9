package best

import "math"

const (
	// coolGain is how fast the temperature follows the wishes, and coolFastest the factor by which
	// one sweep may lower it at most.
	coolGain, coolFastest = 0.5, 0.9
	// workByWish is the fraction of the work with which cooling by wishes reaches what cooling at a
	// fixed rate reaches with all of it: no sweep is spent where everything moves or nothing does.
	workByWish = 0.6
)

// A cooling is the temperature schedule of one level, as a function of the fraction x of the
// level's time that has passed.
type cooling struct {
	// The temperature at the beginning, and the fraction of it at the end.
	hot, cool float64
	last      bool // the level is the finest
	// byWish lets the temperature follow the wishes to move: their share of the weight falls
	// linearly with x, from what it is in the first sweep. Most of the gain of annealing comes in a
	// narrow range of temperatures, which differs from graph to graph. A fixed rate crosses that
	// range in few sweeps, and spends half of them where next to nothing moves.
	byWish bool

	// The temperature of the last sweep before quenching; 0 before the first.
	temp float64
	// The share of the weight that wished to move in the first sweep.
	wished float64
}

// next returns the temperature of the next sweep. wish is the share of the weight that wished to
// move in the last one.
func (c *cooling) next(x, wish float64) float64 {
	rate := c.hot * math.Pow(c.cool, x)
	switch {
	case !c.byWish:
		c.temp = rate
	case c.temp == 0:
		c.temp = c.hot
	default:
		if c.wished == 0 {
			c.wished = wish
		}
		// Too many still wish to move for this point of time. The temperature only ever falls.
		if want := c.wished * (1 - x); wish > want {
			c.temp *= max(coolFastest, math.Pow(want/wish, coolGain))
		}
	}
	if c.last && x > quenchFrom {
		return min(rate, c.temp) * quench
	}
	return c.temp
}

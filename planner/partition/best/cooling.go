package best

import "math"

const (
	// coolGain is how fast the temperature follows what is wished, and
	// coolFastest the most of it that one sweep takes away.
	coolGain, coolFastest = 0.5, 0.9
	// workByWish is the part of the work that cooling by wishes needs for what
	// cooling at a fixed rate reaches with all of it: no sweep is spent where
	// all are in order or none.
	workByWish = 0.6
)

// A cooling says at which temperature each sweep of a level is, by the part x
// of the level's time that has passed.
type cooling struct {
	Hot, Cool float64 // temperature at the beginning, and its part at the end
	Last      bool    // the level is the finest
	// ByWish lets the temperature follow the wishes to move: their share of the
	// weight falls evenly with x, from what it is in the first sweep. Most of
	// what annealing brings it brings in a narrow range of temperatures, which
	// is another one for each graph; a fixed rate leaves that range in few
	// sweeps, and spends half of all where next to nothing moves.
	ByWish bool

	Temp   float64 // of the last sweep, before the heat is taken away at the end; 0: none yet
	Swept  float64 // temperature of the last sweep; 0: none yet
	Wished float64 // share of the weight that wished to move in the first sweep
}

// next returns the temperature of the next sweep, where wish is the share that
// wished to move in the last one.
func (c *cooling) next(x, wish float64) float64 {
	rate := c.Hot * math.Pow(c.Cool, x)
	switch {
	case !c.ByWish:
		c.Temp = rate
	case c.Temp == 0:
		c.Temp = c.Hot
	default:
		if c.Wished == 0 {
			c.Wished = wish
		}
		if want := c.Wished * (1 - x); wish > want {
			c.Temp *= max(coolFastest, math.Pow(want/wish, coolGain))
		}
	}
	c.Swept = c.Temp
	if c.Last && x > quenchFrom {
		c.Swept = min(rate, c.Temp) * quench
	}
	return c.Swept
}

package best

import (
	"math"
	"math/bits"
)

// A tariff is what blocks charge vertices. Constraints act on the decision of a vertex only through
// it. It is handed on from level to level.
type tariff struct {
	// By block, the price of a net that is new to it; 1 without pressure.
	price []float32
	// By block, the part of price-1 that stays until it is no longer needed.
	lasting []float32
	// By block, the price of a unit of vertex weight.
	rent []float32
}

// newTariff returns a tariff without any pressure.
func newTariff(k int) *tariff {
	t := &tariff{price: make([]float32, k), lasting: make([]float32, k), rent: make([]float32, k)}
	for b := range t.price {
		t.price[b] = 1
	}
	return t
}

const (
	// headroom is the fraction of its due that a block should not touch, so that the placement of
	// parameters has room to level out.
	headroom = 0.01
	// steepness is how much the price rises at once with the fraction by which a block is above its
	// due. Without it vertices that belong together would gather in one block, drive up its price,
	// leave it and gather in the next.
	steepness = 20
	// touchGain and loadGain are how much the price rises per sweep, lastingly, with the fraction
	// by which a block's touched nets, or its load, exceed its due.
	touchGain, loadGain = 0.1, 0.02
	// lowest is how far below 1 the price may fall for a block that carries too little.
	lowest = -0.5
	// dearest bounds both parts of a price, for the case that the constraints cannot be met: too
	// few shared parameters, or too small a theta.
	dearest = 3
	// rentGain is how fast rents follow demand. 0.5 would level it in one sweep if nothing else
	// changed.
	rentGain = 0.3
	// thetaReserve is the fraction of theta from which on nets become dear, and thetaHaste how much
	// more an excess over it counts than one of traffic.
	thetaReserve, thetaHaste = 0.98, 4
	// loadEvery is the number of sweeps between two estimates of the loads.
	loadEvery = 4
)

// adjustPrices raises the prices of blocks that touch more nets than they can ever pay for, after
// the fraction part of a sweep. Whoever owns a shared net, each block that touches it pays at least
// once. So touch is a lower bound on what the block will carry; if it exceeds the block's share of
// 2 x total the traffic cannot be level. With a bound theta on the nets that a block uses, the
// stricter of the two rules counts.
func (a *annealer[T]) adjustPrices(part float64) {
	// While all blocks use more than theta, as they do before anything is in order, only those are
	// to blame that use more than the mean.
	bearable := max(thetaReserve*float64(a.theta), float64(sum(a.cost.used))/float64(a.k))
	for b := range a.price {
		over := 0.0
		if due := a.due(b) * (1 - headroom); due > 0 {
			over = float64(a.cost.touch[b])/due - 1
		}
		if a.theta > 0 {
			over = max(over, thetaHaste*(float64(a.cost.used[b])/bearable-1))
		}
		// A lasting part that raisePrices has made negative is not lowered further here, and a
		// positive one falls back to 0 at most.
		stays := a.lasting[b] + float32(part*touchGain*over)
		a.lasting[b] = min(max(stays, min(0, a.lasting[b])), dearest)
		a.price[b] = 1 + a.lasting[b] + float32(min(steepness*max(0, over), dearest))
	}
}

// due returns what block b carries when the traffic is level.
func (a *annealer[T]) due(b int) float64 { return 2 * float64(a.cost.total) * a.share[b] }

// raisePrices estimates what the blocks would carry now. Blocks that touch little, or only what
// many others touch too, cannot carry their due; their nets become cheaper, and those of blocks
// that carry the rest dearer, by gain times the fraction by which they exceed their due. It returns
// the largest such fraction.
func (a *annealer[T]) raisePrices(gain float64) (worst float64) {
	a.estimateLoads()
	for b := range a.load {
		if due := a.due(b); due > 0 {
			over := a.load[b]/due - 1
			worst = max(worst, over)
			a.lasting[b] = min(max(a.lasting[b]+float32(gain*over), lowest), dearest)
		}
	}
	return worst
}

// estimateLoads sets a.load to what each block would carry if every net were owned by the least
// loaded of the blocks that touch it, hot nets first. That is close to what partition.FlatOwners
// will achieve.
func (a *annealer[T]) estimateLoads() {
	for b := range a.load {
		a.load[b] = float64(a.cost.touch[b])
	}
	e := 0
	for _, class := range a.h.class {
		for ; e < int(class.end); e++ {
			at, n := a.leastLoaded(e)
			if n > 2 {
				a.load[at] += float64(n-2) * float64(class.weight)
			}
		}
	}
}

// leastLoaded returns the least loaded block, relative to its share, that touches net e, and the
// number of blocks that do.
func (a *annealer[T]) leastLoaded(e int) (at, blocks int) {
	least := math.Inf(1)
	for w := range a.cells {
		for set := uint64(a.cells[w][e].touch); set != 0; set &= set - 1 {
			b := w*width[T]() + bits.TrailingZeros64(set)
			blocks++
			if r := a.load[b] * a.perShare[b]; r < least {
				at, least = b, r
			}
		}
	}
	return at, blocks
}

// adjustRents adjusts rents so that as much weight wants to leave each block as wants to enter it.
// All blocks are full, or nearly: without rents most wishes would be for blocks that have no room,
// and be refused. Demand at temperature temp follows the rent as exp(-rent/temp).
func (a *annealer[T]) adjustRents(temp float64) {
	mean := float64(sum(a.state.size)) / float64(a.h.vertices()) // weight of a vertex
	least := float32(math.Inf(1))
	for b := range a.rent {
		a.rent[b] += float32(rentGain * temp / mean * math.Log((a.in[b]+mean)/(a.out[b]+mean)))
		least = min(least, a.rent[b])
		a.in[b], a.out[b] = 0, 0
	}
	// Only differences matter, so the lowest rent is kept at 0.
	for b := range a.rent {
		a.rent[b] -= least
	}
}

func sum(list []int64) int64 {
	var all int64
	for _, x := range list {
		all += x
	}
	return all
}

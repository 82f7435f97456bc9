package best

import (
	"math"
	"math/bits"
)

// A tariff is what blocks ask of vertices. It is what is left of the
// constraints in a vertex's decision, and is handed from level to level.
type tariff struct {
	price   []float32 // of a net that is new to the block; 1 where nothing presses
	lasting []float32 // the part of price-1 that stays until it is no longer needed
	rent    []float32 // of a unit of vertex weight
}

func newTariff(k int) *tariff {
	t := &tariff{price: make([]float32, k), lasting: make([]float32, k), rent: make([]float32, k)}
	for b := range t.price {
		t.price[b] = 1
	}
	return t
}

const (
	// headroom is the part of its due that a block should not touch, so that
	// the placement of the parameters has something to level out with.
	headroom = 0.01
	// steepness is how much a price rises at once with the part by which a
	// block is above its due. Without it, what belongs together would gather in
	// one block, drive its price up, leave it and gather in the next.
	steepness = 20
	// touchGain and loadGain are how much a price rises for good, in a sweep,
	// with the part by which a block's touched nets, or its load, are above its due.
	touchGain, loadGain = 0.1, 0.02
	// lowest is how far below 1 a price may fall, for a block with too little.
	lowest = -0.5
	// dearest bounds both parts of a price where the constraints cannot be met:
	// so few parameters shared that one makes a difference, or too small a theta.
	dearest = 3
	// rentGain is how fast rents follow demand: 0.5 would level it in one sweep
	// if nothing else changed.
	rentGain = 0.3
	// thetaReserve is the part of theta from which on nets become dear, and
	// thetaHaste how much more that counts than too much traffic.
	thetaReserve, thetaHaste = 0.98, 4
	// loadEvery is how many sweeps lie between two looks at the loads.
	loadEvery = 4
)

// adjustPrices makes nets dearer for blocks that touch more than they can ever
// pay for, after a part of a sweep. Whoever owns a shared net, each block that
// touches it pays at least once; so touch is below what the block will carry,
// and must be below its share of 2 x total, or the traffic cannot be flat. With
// a bound theta on the nets that a block uses, the dearer of the two rules.
func (a *annealer[T]) adjustPrices(part float64) {
	// While all use more than theta, as they do before anything is in order,
	// only who uses more than others is to blame.
	bearable := max(thetaReserve*float64(a.theta), float64(sum(a.cost.used))/float64(a.k))
	for b := range a.price {
		over := 0.0
		if due := a.due(b) * (1 - headroom); due > 0 {
			over = float64(a.cost.touch[b])/due - 1
		}
		if a.theta > 0 {
			over = max(over, thetaHaste*(float64(a.cost.used[b])/bearable-1))
		}
		stays := a.lasting[b] + float32(part*touchGain*over)
		a.lasting[b] = min(max(stays, min(0, a.lasting[b])), dearest)
		a.price[b] = 1 + a.lasting[b] + float32(min(steepness*max(0, over), dearest))
	}
}

// due is what block b will carry when the traffic is flat.
func (a *annealer[T]) due(b int) float64 { return 2 * float64(a.cost.total) * a.share[b] }

// raisePrices looks at what the blocks would carry now. Blocks that touch
// little, or little that many others touch, cannot be made to carry their due;
// they get nets cheaper, and those that carry the rest dearer, by gain times
// what they carry above their due. It returns the largest such part.
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

// estimateLoads sets a.load to what each block would carry if every net were
// owned by the least loaded of the blocks that touch it, hot nets first.
func (a *annealer[T]) estimateLoads() {
	for b := range a.load {
		a.load[b] = float64(a.cost.touch[b])
	}
	e := 0
	for _, class := range a.h.class {
		for ; e < int(class.end); e++ {
			at, n := a.leastLoaded(e)
			if a.h.anchor != nil && a.h.anchor[e] >= 0 {
				at = int(a.h.anchor[e])
			}
			if n > 2 {
				a.load[at] += float64(n-2) * float64(class.weight)
			}
		}
	}
}

// leastLoaded returns the least loaded block that touches net e, for its share,
// and how many do.
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

// adjustRents makes as many vertices want to leave each block as want to enter
// it. All blocks are full, or nearly: without rents most wishes would be for
// blocks that have no room, and come to nothing. Demand at temperature temp
// follows the rent as exp(-rent/temp).
func (a *annealer[T]) adjustRents(temp float64) {
	mean := float64(sum(a.state.size)) / float64(a.h.vertices()) // weight of a vertex
	least := float32(math.Inf(1))
	for b := range a.rent {
		a.rent[b] += float32(rentGain * temp / mean * math.Log((a.in[b]+mean)/(a.out[b]+mean)))
		least = min(least, a.rent[b])
		a.in[b], a.out[b] = 0, 0
	}
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

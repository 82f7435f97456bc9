package best

import "math"

// A probe has the costs of a sample of vertices in all blocks. From these it computes what a sweep
// would do at any temperature, without making it. It ignores that vertices would influence each
// other, which is right for small changes.
type probe struct {
	k   int
	own []int32
	// By vertex and block, k in a row.
	cost []float32
}

// probeSize is how many vertices are sampled.
const probeSize = 4096

// probe samples vertices at regular intervals; they are in random order.
func (a *annealer[T]) probe() probe {
	p := probe{k: a.k}
	n := a.h.vertices()
	m := &a.members[0]
	size := probeSize
	if a.stays != nil && a.stays.hold {
		size = n // few of them are free
	}
	for i := range min(n, size) {
		v := i * n / min(n, size)
		if a.h.home != nil && a.h.home[v] >= 0 || a.stays.holds(v) {
			continue
		}
		sum := a.hits(v, &m.planes, m.hits)
		p.own = append(p.own, a.block[v])
		for b, hit := range m.hits {
			p.cost = append(p.cost, a.price[b]*(sum-hit)+a.rent[b]*float32(a.h.weight[v]))
		}
	}
	return p
}

// outlook returns how undecided the vertices are at temperature temp, which is the probability that
// two draws for a vertex differ, and by how much a sweep would raise the cost, negative if it would
// lower it.
func (p *probe) outlook(temp float64) (undecided, rise float64) {
	for i, own := range p.own {
		costs := p.cost[i*p.k : (i+1)*p.k]
		var z, zz, rises float64
		for _, c := range costs {
			d := float64(c - costs[own])
			// The bounds keep a sum of k such terms, and its square, within float64.
			w := math.Exp(max(-300, min(300, -d/temp)))
			z += w
			zz += w * w
			rises += w * d
		}
		undecided += 1 - zz/(z*z)
		rise += rises / z
	}
	return undecided / float64(len(p.own)), rise
}

// melting returns the temperature for starting from a random assignment, where there is nothing to
// lose: vertices are nearly as undecided as possible.
func (p *probe) melting() float64 {
	most := 1 - 1/float64(p.k)
	return p.lowest(func(undecided, _ float64) bool { return undecided > 0.9*most })
}

// steady returns the temperature for continuing from a good assignment: a sweep leaves the cost as
// it is. If colder, annealing would freeze in the present assignment; if hotter, lose it.
func (p *probe) steady() float64 {
	return p.lowest(func(_, rise float64) bool { return rise > 0 })
}

// lowest finds by bisection the temperature at which tooHot begins to hold, to 1%.
func (p *probe) lowest(tooHot func(undecided, rise float64) bool) float64 {
	if len(p.own) == 0 {
		return 1
	}
	low, high := 1e-3, 1e9
	// The geometric mean, since temperatures span orders of magnitude.
	for high/low > 1.01 {
		mid := math.Sqrt(low * high)
		if tooHot(p.outlook(mid)) {
			high = mid
		} else {
			low = mid
		}
	}
	return low
}

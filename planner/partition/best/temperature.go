package best

import "math"

// A sample of vertices' choices tells what a sweep at any temperature would do,
// without doing it.
type probe struct {
	k    int
	own  []int32
	cost []float32 // vertices x k
}

const probeSize = 4096

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

// outlook returns how undecided the vertices are at temperature temp (the
// chance that two draws for one vertex differ), and by how much a sweep would
// raise the cost (or lower it, below 0).
func (p *probe) outlook(temp float64) (undecided, rise float64) {
	for i, own := range p.own {
		costs := p.cost[i*p.k : (i+1)*p.k]
		var z, zz, rises float64
		for _, c := range costs {
			d := float64(c - costs[own])
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

// melting returns the temperature at which to start from a random assignment,
// where nothing can be lost: vertices are nearly as undecided as can be.
func (p *probe) melting() float64 {
	most := 1 - 1/float64(p.k)
	return p.lowest(func(undecided, _ float64) bool { return undecided > 0.9*most })
}

// steady returns the temperature at which to go on from a good assignment: a
// sweep leaves the cost as it is. Colder, it would freeze in what it has;
// hotter, lose it.
func (p *probe) steady() float64 {
	return p.lowest(func(_, rise float64) bool { return rise > 0 })
}

// lowest finds where tooHot begins to hold.
func (p *probe) lowest(tooHot func(undecided, rise float64) bool) float64 {
	if len(p.own) == 0 {
		return 1
	}
	low, high := 1e-3, 1e9
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

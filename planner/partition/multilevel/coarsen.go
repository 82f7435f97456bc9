package multilevel

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// coarsen merges pairs of samples and pairs of parameters that have a common neighbour (DWW21
// section 5, steps 1 to 4, on each side). It returns nil if the level has at most target samples,
// or if hardly any can be merged: further levels would cost time and memory without being smaller.
func coarsen(l *level, target, k int, random *rand.Rand) *level {
	if l.samples <= target {
		return nil
	}
	var total int64
	for _, w := range l.weight {
		total += w
	}
	m := &matching{l: l, mate: make([]int32, l.vertices()), heaviest: max(total/int64(8*k), 1)}
	for v := range m.mate {
		m.mate[v] = -1 // step 1: all are available
	}
	m.samples(random)
	m.params(random)
	next := m.merge()
	if next.samples > l.samples*95/100 {
		return nil
	}
	return next
}

// A matching has the pairs of vertices that are merged.
type matching struct {
	l *level
	// By vertex, the one with which it is merged, itself if it stays alone, or -1 while it is
	// available.
	mate []int32
	// The largest weight of merged samples. Without a bound a few vertices would grow too heavy to
	// be placed within the limits.
	heaviest int64
}

// largestNet bounds the nets through which samples look for each other. Those of popular parameters
// say little, and cost the square of their size.
const largestNet = 128

// samples matches each available sample, in random order, with the available one with which it
// shares most. A common net counts its cost divided by the number of other samples in it, so rare
// parameters count most.
func (m *matching) samples(random *rand.Rand) {
	score := make([]float64, m.l.samples)
	var near []int32
	for _, at := range random.Perm(m.l.samples) { // step 2
		v := int32(at)
		// Fixed vertices stay alone, so a merged vertex is never bound to two machines.
		if m.mate[v] >= 0 || m.l.fixed[v] >= 0 {
			continue
		}
		near = near[:0]
		for _, e := range m.l.netsOf(v) { // step 3
			pins := m.l.samplesOf(e)
			if len(pins) < 2 || len(pins) > largestNet {
				continue
			}
			share := float64(m.l.netCost[e]) / float64(len(pins)-1)
			for _, u := range pins {
				if u == v || m.mate[u] >= 0 {
					continue
				}
				if score[u] == 0 {
					near = append(near, u)
				}
				score[u] += share
			}
		}
		best := int32(-1)
		for _, u := range near {
			if m.fits(v, u) && (best < 0 || score[u] > score[best]) {
				best = u
			}
		}
		if best < 0 {
			best = m.anyNear(v)
		}
		for _, u := range near {
			score[u] = 0
		}
		m.join(v, best)
	}
}

// fits reports whether v and u may be merged.
func (m *matching) fits(v, u int32) bool {
	return m.l.fixed[u] < 0 && m.l.weight[v]+m.l.weight[u] <= m.heaviest
}

// anyNear returns the first available sample with a common neighbour, or -1. It looks through large
// nets too, but only at their beginnings.
func (m *matching) anyNear(v int32) int32 {
	const tries = 64 // a net
	for _, e := range m.l.netsOf(v) {
		pins := m.l.samplesOf(e)
		for _, u := range pins[:min(len(pins), tries)] {
			if u != v && m.mate[u] < 0 && m.fits(v, u) {
				return u
			}
		}
	}
	return -1
}

// join is step 4: it merges v and u. If u < 0, v stays alone.
func (m *matching) join(v, u int32) {
	if u < 0 {
		m.mate[v] = v
		return
	}
	m.mate[v], m.mate[u] = u, v
}

// params matches parameters. There are too many to compare each with all near it. Instead each gets
// the least of its samples in a random order; parameters with the same least sample have it in
// common, and are the more likely to have it the more they share (min-wise hashing). Of these,
// neighbours in degree are merged.
func (m *matching) params(random *rand.Rand) {
	rank := random.Perm(m.l.samples)
	type entry struct{ least, degree, vertex int32 }
	var entries []entry
	for v := int32(m.l.samples); int(v) < m.l.vertices(); v++ {
		if m.l.fixed[v] >= 0 {
			continue
		}
		e := entry{least: int32(m.l.samples), vertex: v}
		for _, net := range m.l.netsOf(v) {
			for _, s := range m.l.samplesOf(net) {
				e.least = min(e.least, int32(rank[s]))
				e.degree++
			}
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.least, b.least), cmp.Compare(a.degree, b.degree), cmp.Compare(a.vertex, b.vertex))
	})
	for i := 0; i+1 < len(entries); i++ {
		if entries[i].least == entries[i+1].least && int(entries[i].least) < m.l.samples {
			m.join(entries[i].vertex, entries[i+1].vertex)
			i++
		}
	}
}

// merge returns the coarser level. A net keeps one pin for each merged vertex, and nets with the
// same pins become one with the sum of their costs.
func (m *matching) merge() *level {
	l := m.l
	next := &level{finer: make([]int32, l.vertices())}
	for v := range int32(l.vertices()) {
		if int(v) == l.samples {
			next.samples = len(next.weight)
		}
		// The partner with the lower number has made the vertex.
		if u := m.mate[v]; u >= 0 && u < v {
			next.finer[v] = next.finer[u]
			next.weight[next.finer[u]] += l.weight[v]
			continue
		}
		next.finer[v] = int32(len(next.weight))
		next.weight = append(next.weight, l.weight[v])
		next.fixed = append(next.fixed, l.fixed[v])
	}
	if l.vertices() == l.samples { // no sample has a parameter
		next.samples = len(next.weight)
	}
	next.mergeNets(l)
	next.transpose()
	return next
}

// mergeNets sets the nets of l, whose finer is set, from those of the finer level. Nets are
// compared within equal hashes of their pins, so no two different nets are ever merged.
func (l *level) mergeNets(from *level) {
	type net struct {
		hash     uint64
		from, to int64 // its pins
		cost     int32
	}
	nets := make([]net, 0, from.netCount())
	pins := make([]int32, 0, len(from.pins))
	last := make([]int32, l.vertices()) // 1 + the net that a vertex was last a pin of
	for e := range int32(from.netCount()) {
		n := net{from: int64(len(pins)), cost: from.netCost[e]}
		for _, v := range from.pinsOf(e) {
			if u := l.finer[v]; last[u] != e+1 {
				last[u] = e + 1
				pins = append(pins, u)
				n.hash += splitmix.Next(uint64(u))
			}
		}
		n.to = int64(len(pins))
		slices.Sort(pins[n.from:n.to])
		nets = append(nets, n)
	}
	slices.SortFunc(nets, func(a, b net) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.from, b.from))
	})
	l.pinStart = append(l.pinStart, 0)
	for i, n := range nets {
		own := pins[n.from:n.to]
		if i > 0 && nets[i-1].hash == n.hash && slices.Equal(own, pins[nets[i-1].from:nets[i-1].to]) {
			l.netCost[len(l.netCost)-1] += n.cost
			continue
		}
		l.pins = append(l.pins, own...)
		l.pinStart = append(l.pinStart, int64(len(l.pins)))
		l.netCost = append(l.netCost, n.cost)
	}
}

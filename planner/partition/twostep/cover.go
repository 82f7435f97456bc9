package twostep

import (
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// cover counts the parameters of samples as covered by m: from now on they cost no other sample
// anything. It returns how many are new and appends those to m.log. Each parameter is covered once
// per machine, so all calls together take O(k |E|).
func (m *machine) cover(d *division, samples []uint32) (fresh int) {
	before := len(m.log)
	for _, s := range samples {
		m.costs.claim(s)
		params := m.mark(d.g.ParamsOf(int(s)))
		if d.g.Weighted() {
			for _, p := range params {
				w := d.g.ParamWeight(int(p))
				m.used += int64(w)
				m.costs.lower(d.g.SamplesOf(int(p)), w, d.free)
			}
		} else {
			m.used += int64(len(params))
			m.lower(d, params)
		}
	}
	return len(m.log) - before
}

// mark covers those of params that are not covered yet, appends them to m.log, and returns them. It
// looks at all before it changes any, without a branch that depends on what it reads: most of that
// is not in the cache, and the misses then overlap.
func (m *machine) mark(params []uint32) []uint32 {
	n := len(m.log)
	m.log = slices.Grow(m.log, len(params))
	fresh := m.log[n : n+len(params)]
	n = 0
	for _, p := range params {
		fresh[n] = p
		n += int(^m.covered[p/64] >> (p % 64) & 1)
	}
	fresh = fresh[:n]
	for _, p := range fresh {
		m.covered[p/64] |= 1 << (p % 64)
	}
	m.log = m.log[:len(m.log)+n]
	return fresh
}

// lower subtracts 1 from the costs of all samples that use params. The lists of rare parameters are
// first gathered into one: each is at another place in memory, and many that are read at the same
// time take little longer than one.
func (m *machine) lower(d *division, params []uint32) {
	m.users, m.lowered = m.users[:0], m.lowered[:0]
	for _, p := range params {
		m.users = append(m.users, d.g.SamplesOf(int(p)))
	}
	for _, list := range m.users {
		if len(list) <= rare && cap(list) >= rare {
			m.lowered = appendRare(m.lowered, list)
		} else {
			m.costs.lower(list, 1, d.free)
		}
	}
	m.costs.lower(m.lowered, 1, d.free)
}

// rare is the largest number of samples of a rare parameter.
const rare = 16

// appendRare appends list to dst. It always copies rare elements, so that the length decides
// nothing. What follows the list is of the same array, which its caller has checked by the
// capacity.
func appendRare(dst, list []uint32) []uint32 {
	n := len(dst)
	dst = slices.Grow(dst, rare)
	*(*[rare]uint32)(dst[n : n+rare]) = *(*[rare]uint32)(list[:rare])
	return dst[:n+len(list)]
}

// uncover undoes the last cover, which was of these samples and covered fresh parameters.
func (m *machine) uncover(d *division, samples []uint32, fresh int) {
	n := len(m.log) - fresh
	for _, p := range m.log[n:] {
		m.covered[p/64] &^= 1 << (p % 64)
		w := d.g.ParamWeight(int(p))
		m.used -= int64(w)
		m.costs.raise(d.g.SamplesOf(int(p)), w)
	}
	m.log = m.log[:n]
	for _, s := range samples {
		m.costs.release(s, d.free)
	}
}

// params appends the parameters of s that m has not covered. cost is the cost of s, which is their
// weight, so that the search can stop when all are found.
func (m *machine) params(dst []uint32, g *graph.Graph, s uint32, cost int64) []uint32 {
	all := m.rows.of(s)
	dst = slices.Grow(dst, len(all))
	for left, i := cost, 0; left > 0; i++ {
		if p := all[i]; m.covered[p/64]>>(p%64)&1 == 0 {
			dst = append(dst, p)
			left -= int64(g.ParamWeight(int(p)))
		}
	}
	return dst
}

package twostep

import (
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// cover counts the parameters of samples as covered by m: they cost no other
// sample anything from now on. It returns how many are new, and appends those to
// m.log. Each parameter is counted once a machine, so that all of it together
// takes O(k |E|).
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

// mark appends to m.log those of params that are not covered, covers them and
// returns them. It looks at all before it changes any, and without a branch that
// depends on what it sees: most of what it reads is not in the cache, and is
// waited for together.
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

// lower takes 1 from the costs of all samples that use params. Those of rare
// parameters are gathered first: each of their lists is somewhere else in the
// memory, and many that are read at the same time take little longer than one.
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

// rare is how many samples use a rare parameter at most.
const rare = 16

// appendRare appends list to dst. It copies as many as a rare parameter may have,
// so that nothing has to be decided: what follows the list is of the same array.
func appendRare(dst, list []uint32) []uint32 {
	n := len(dst)
	dst = slices.Grow(dst, rare)
	*(*[rare]uint32)(dst[n : n+rare]) = *(*[rare]uint32)(list[:rare])
	return dst[:n+len(list)]
}

// uncover undoes the last cover, which was of these samples and that many
// parameters.
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

// params appends the parameters of s that m does not cover yet. They weigh
// cost, what s costs, which tells when all are found.
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

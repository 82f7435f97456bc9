package twostep

import (
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// A machine is one D_i of Alg. 1 while it grows.
type machine struct {
	load, limit int64   // weight of its samples, and the most it may hold
	share       float64 // its capacity
	size        int     // |D_i|
	used        int64   // f(D_i), the weight of covered
	covered     []uint64
	rows        *rows // nil where subsets have one sample
	costs       costs
	noted       int      // how many of the assigned samples the costs know
	pending     []uint32 // given since the last update
	next        subset   // what it would take next
	ready       bool     // next was searched for since the last give
	closed      bool     // no unassigned sample fits into its memory
	rejected    int      // subsets turned down in a row

	// Of one update: the samples that use parameters covered now, parameter by
	// parameter, and all of them in a row.
	users   [][]uint32
	lowered []uint32
}

// A subset is a set S of samples and f(D_i + S) - f(D_i).
type subset struct {
	set  []uint32
	cost int64
}

// torn reports whether another machine took some of the set. As long as none
// is gone, nothing that others took away can have been better.
func (s subset) torn(free []uint64) bool {
	for _, x := range s.set {
		if !isFree(free, x) {
			return true
		}
	}
	return false
}

func newMachine(g *graph.Graph, start costs, r *rows, limit int64, share float64) *machine {
	return &machine{
		limit:   limit,
		share:   share,
		covered: make([]uint64, (g.Params()+63)/64),
		costs:   start.clone(),
		rows:    r,
	}
}

func (m *machine) stale() bool { return !m.ready || len(m.pending) > 0 }

// prepare brings the costs up to date and, where searches look at all samples,
// searches. It reads d and changes nothing but m.
func (m *machine) prepare(d *division, f *finder) {
	if m.closed || !m.stale() {
		return
	}
	m.update(d)
	if d.sampler == nil && m.load < m.limit {
		m.search(d, f, nil)
	}
	m.ready = true
}

// update counts the parameters of the pending samples as covered: they cost no
// other sample anything from now on. Each parameter is counted once a machine,
// so that all updates together take O(k |E|).
func (m *machine) update(d *division) {
	m.costs.take(d.taken[m.noted:])
	m.noted = len(d.taken)
	for _, s := range m.pending {
		m.users = m.users[:0]
		for _, p := range d.g.ParamsOf(int(s)) {
			if m.covered[p/64]>>(p%64)&1 == 1 {
				continue
			}
			m.covered[p/64] |= 1 << (p % 64)
			w, users := d.g.ParamWeight(int(p)), d.g.SamplesOf(int(p))
			m.used += int64(w)
			if d.g.Weighted() {
				m.costs.lower(users, w)
			} else {
				m.users = append(m.users, users)
			}
		}
		m.lower()
	}
	m.pending = m.pending[:0]
}

// lower takes 1 from the costs of all of m.users. Those of rare parameters are
// gathered first: each of their lists is somewhere else in the memory, and many
// that are read at the same time take little longer than one.
func (m *machine) lower() {
	const rare = 256
	m.lowered = m.lowered[:0]
	for _, list := range m.users {
		if len(list) > rare {
			m.costs.lower(list, 1)
		} else {
			m.lowered = append(m.lowered, list...)
		}
	}
	m.costs.lower(m.lowered, 1)
}

// search finds the best subset of at most alpha samples among those drawn, or
// among all unassigned ones where drawn is nil.
func (m *machine) search(d *division, f *finder, drawn []uint32) {
	room := d.theta - m.used
	switch {
	case d.rules.Alpha == 1 && drawn == nil:
		m.next = m.costs.least(d.free, room)
	case d.rules.Alpha == 1:
		m.next = f.leastOf(m, drawn, room)
	default:
		if drawn == nil {
			drawn = f.all(d.free)
		}
		m.next = f.find(d.g, m, drawn, d.rules.Alpha, d.rules.Beta, room)
	}
}

// fitsAny reports whether any unassigned sample fits into m's memory.
func (m *machine) fitsAny(d *division) bool {
	return len(m.costs.least(d.free, d.theta-m.used).set) > 0
}

// reject counts a subset that was turned down. Costs never grow as long as
// nothing is taken, so only another sample can help, and that rarely for long.
func (m *machine) reject(beta float64) error {
	const patience = 1000
	if m.rejected++; m.rejected > patience {
		return fmt.Errorf("beta = %g is too small: %d subsets in a row cost more than beta a sample", beta, patience)
	}
	return nil
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

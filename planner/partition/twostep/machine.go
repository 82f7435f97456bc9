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
	rows        *rows   // nil where subsets have one sample
	closed      bool    // no unassigned sample fits into its memory
	rejected    int     // subsets turned down in a row

	// What it took last, and what it would take next. It looks ahead as far as
	// depth says: its tables stay in the cache meanwhile, and the cores need not
	// wait for each other.
	plan  []subset
	taken int // of the plan
	known int // of the plan: they are covered, in the costs, and used
	depth int

	covered []uint64 // bitmap of parameters
	used    int64    // f(D_i), the weight of covered
	costs   costs
	log     []uint32 // the parameters that each known one of the plan covered

	// Of one step: the samples that use each new parameter, and all in a row.
	users   [][]uint32
	lowered []uint32
}

// A subset is a set S of samples and f(D_i + S) - f(D_i).
type subset struct {
	set    []uint32
	cost   int64
	covers int // how many parameters were not covered before, once known
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
		depth:   1,
		covered: graph.MakeHuge[uint64]((g.Params() + 63) / 64),
		costs:   start.clone(),
		rows:    r,
	}
}

// nextSet is what the machine would take next.
func (m *machine) nextSet() subset { return m.plan[m.taken] }

// assignSet notes that the machine was given the next of its plan, or of that set.
func (m *machine) assignSet(set []uint32) {
	m.plan[m.taken].set = set
	m.taken++
	m.rejected = 0
}

// stale reports whether the machine has to be prepared before its next turn.
func (m *machine) stale(d *division) bool {
	if d.sampler != nil {
		return m.known < m.taken
	}
	return m.taken == len(m.plan)
}

// prepare brings the costs up to date and, where searches look at all samples,
// plans ahead. It reads d and changes nothing but m.
func (m *machine) prepare(d *division, f *finder) {
	if m.closed {
		return
	}
	m.forget()
	m.learn(d, m.taken)
	if d.sampler != nil {
		return
	}
	load := m.load
	for _, s := range m.plan[m.taken:] {
		load += d.weightOf(s.set)
	}
	for len(m.plan)-m.taken < m.depth && load < m.limit {
		m.learn(d, len(m.plan))
		s := m.search(d, f, nil)
		m.plan = append(m.plan, s)
		if len(s.set) == 0 {
			return
		}
		load += d.weightOf(s.set)
	}
	if d.rules.Alpha == 1 {
		m.depth = min(2*m.depth, deepest(d))
	}
}

// deepest is how many samples a machine looks ahead at most: some of what is left
// for each, so that it seldom happens that two want the same. Where it does, at
// the start and at the end, they look less far.
func deepest(d *division) int {
	const share, atLeast, atMost = 128, 8, 128
	return min(max(d.left/(share*len(d.machines)), atLeast), atMost)
}

// forget drops what is taken and known.
func (m *machine) forget() {
	past := min(m.taken, m.known)
	covered := 0
	for _, s := range m.plan[:past] {
		covered += s.covers
	}
	m.plan = slices.Delete(m.plan, 0, past)
	m.log = slices.Delete(m.log, 0, covered)
	m.taken -= past
	m.known -= past
}

// learn makes the first n of the plan known.
func (m *machine) learn(d *division, n int) {
	for ; m.known < n; m.known++ {
		m.plan[m.known].covers = m.cover(d, m.plan[m.known].set)
	}
}

// goBack undoes the plan from the next on.
func (m *machine) goBack(d *division) {
	for ; m.known > m.taken; m.known-- {
		s := m.plan[m.known-1]
		m.uncover(d, s.set, s.covers)
	}
	m.plan = m.plan[:m.taken]
	m.depth = max(1, m.depth/4)
}

// search returns the best subset of at most alpha samples among those drawn, or
// among all unassigned ones where drawn is nil.
func (m *machine) search(d *division, f *finder, drawn []uint32) subset {
	room := d.theta - m.used
	switch {
	case d.rules.Alpha == 1 && drawn == nil:
		return m.costs.least(d.free, room)
	case d.rules.Alpha == 1:
		return f.leastOf(m, drawn, room)
	case drawn == nil:
		drawn = f.all(d.free)
	}
	return f.find(d.g, m, drawn, d.rules.Alpha, d.rules.Beta, room)
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

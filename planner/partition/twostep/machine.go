package twostep

import (
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// A machine is one D_i of Alg. 1 while it grows.
//
// Its plan is a queue of sets: those before taken were given to it, the others it would take next.
// Those before known are in costs, covered and used. A machine plans several sets ahead, because
// its tables then stay in the cache and the cores need not wait for each other after every set. If
// another machine takes a sample of a planned set, the plan from there on is undone (goBack), for
// which log remembers what each known set has covered.
//
// Invariant: log has the parameters that the known sets of the plan have covered, in order.
type machine struct {
	load, limit int64 // weight of its samples, and the most it may hold
	// Its capacity.
	share float64
	size  int // |D_i|
	// nil if sets have one sample.
	rows *rows
	// closed is set if no unassigned sample fits into its memory. Its costs fall only when it takes
	// samples, so it stays closed.
	closed bool
	// The number of sets rejected in a row.
	rejected int

	// The plan; see above. depth is how far it looks ahead.
	plan  []subset
	taken int // of the plan
	known int // of the plan: they are covered, in the costs, and used
	depth int

	// A bitmap of parameters.
	covered []uint64
	// f(D_i): the weight of covered.
	used  int64
	costs costs
	log   []uint32 // the parameters that each known one of the plan covered

	// Scratch: the samples that use each new parameter, and all of them in a row.
	users   [][]uint32
	lowered []uint32
}

// A subset is a set S of samples and its cost f(D_i + S) - f(D_i).
type subset struct {
	set  []uint32
	cost int64
	// The number of parameters that it has newly covered, once known.
	covers int
}

// torn reports whether another machine has taken some of the set. While none is gone the set is
// still the best: samples that others took away only reduce the choice.
func (s subset) torn(free []uint64) bool {
	for _, x := range s.set {
		if !isFree(free, x) {
			return true
		}
	}
	return false
}

// newMachine returns an empty machine. start has the costs for an empty machine, which it copies.
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

// nextSet returns what the machine would take next.
func (m *machine) nextSet() subset { return m.plan[m.taken] }

// assignSet records that the machine was given its next set, or in place of it the given one.
func (m *machine) assignSet(set []uint32) {
	m.plan[m.taken].set = set
	m.taken++
	m.rejected = 0
}

// stale reports whether the machine has to prepare before its next turn.
func (m *machine) stale(d *division) bool {
	if d.sampler != nil {
		return m.known < m.taken
	}
	return m.taken == len(m.plan)
}

// prepare brings the costs up to date and, if searches consider all samples, plans ahead. It reads
// d and changes only m, so machines prepare in parallel.
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

// deepest returns how many sets a machine plans ahead at most: a small part of what is left, so
// that two machines rarely want the same sample. When they do, at the beginning and at the end,
// they look less far.
func deepest(d *division) int {
	const share, atLeast, atMost = 128, 8, 128
	return min(max(d.left/(share*len(d.machines)), atLeast), atMost)
}

// forget drops the sets that are both taken and known from the plan.
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

// learn makes the first n sets of the plan known.
func (m *machine) learn(d *division, n int) {
	for ; m.known < n; m.known++ {
		m.plan[m.known].covers = m.cover(d, m.plan[m.known].set)
	}
}

// goBack undoes the plan from the next set on, and looks less far ahead for a while.
func (m *machine) goBack(d *division) {
	for ; m.known > m.taken; m.known-- {
		s := m.plan[m.known-1]
		m.uncover(d, s.set, s.covers)
	}
	m.plan = m.plan[:m.taken]
	m.depth = max(1, m.depth/4)
}

// search returns the best set of at most alpha samples among those drawn, or among all unassigned
// ones if drawn is nil.
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

// reject counts a set that was rejected. Costs do not change while nothing is taken, so only
// another random sample can help, and if that does not help for long, beta is too small.
func (m *machine) reject(beta float64) error {
	const patience = 1000
	if m.rejected++; m.rejected > patience {
		return fmt.Errorf("beta = %g is too small: %d subsets in a row cost more than beta a sample", beta, patience)
	}
	return nil
}

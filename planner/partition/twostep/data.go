package twostep

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// divideSamples is DWW21 Alg. 1. For every machine the cost of each sample, f(D_i + d) - f(D_i), is
// kept up to date, so a search only compares. What a machine would take next depends on the others
// only through the samples that they take. So all machines update their costs and search in
// parallel, and then take in turn; one whose choice was taken by another searches again. The result
// is that of the paper's loop.
func divideSamples(ctx context.Context, g *graph.Graph, o partition.Options, r Rules) ([]int32, error) {
	d, err := newDivision(g, o, r)
	if err != nil {
		return nil, err
	}
	crew := newCrew(o.K)
	defer crew.stop()
	d.finders = make([]finder, crew.workers())
	for d.left > 0 { // line 3
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		crew.each(func(worker, i int) { d.machines[i].prepare(d, &d.finders[worker]) })
		if err := d.assignRound(); err != nil {
			return nil, err
		}
		if o.Progress != nil {
			o.Progress(0.9 * (1 - float64(d.left)/float64(g.Samples())))
		}
	}
	return d.assigned, nil
}

// A division is the state of Alg. 1. While machines prepare in parallel, only their own fields
// change; assignments are made by one goroutine between that.
type division struct {
	g     *graph.Graph
	rules Rules
	theta int64

	machines []*machine
	// By sample, its machine, or -1.
	assigned []int32
	free     []uint64 // bitmap of D', the unassigned samples
	left     int      // |D'|
	// nil if searches consider all samples.
	sampler *sampler
	// One for each worker.
	finders []finder
}

// newDivision returns the division with the fixed samples assigned. It computes the cost of all
// samples once, for an empty machine, and copies that for each.
func newDivision(g *graph.Graph, o partition.Options, r Rules) (*division, error) {
	n := g.Samples()
	if r.Beta == 0 {
		r.Beta = 1 // more than any cost
		for p := range g.Params() {
			r.Beta += float64(g.ParamWeight(p))
		}
	}
	d := &division{
		g: g, rules: r, theta: o.Theta,
		assigned: make([]int32, n),
		free:     make([]uint64, (n+63)/64),
		left:     n,
	}
	if d.theta == 0 {
		d.theta = math.MaxInt64
	}
	start, err := newCosts(g)
	if err != nil {
		return nil, err
	}
	var sorted *rows
	if r.Alpha > 1 {
		sorted = newRows(g)
	}
	limits := o.SampleLimits(g)
	for i := range o.K {
		d.machines = append(d.machines, newMachine(g, start, sorted, limits[i], shareOf(o, i)))
	}
	for s := range n {
		d.assigned[s] = -1
		d.free[s/64] |= 1 << (s % 64)
	}
	if r.Sample > 0 {
		d.sampler = newSampler(n, rand.New(rand.NewPCG(o.Seed, 0x7d1a)))
	}
	for s, i := range o.FixedSamples {
		if i >= 0 {
			d.give(int(i), uint32(s))
			d.machines[i].cover(d, []uint32{uint32(s)})
		}
	}
	for i, m := range d.machines {
		m.log = m.log[:0] // this is never undone
		if m.used > d.theta {
			return nil, fmt.Errorf("%w: the samples fixed to machine %d use more than theta = %d", partition.ErrInfeasible, i, d.theta)
		}
	}
	return d, nil
}

// shareOf returns the capacity of machine i, 1 without capacities.
func shareOf(o partition.Options, i int) float64 {
	if o.Capacity == nil {
		return 1
	}
	return o.Capacity[i]
}

// assignRound gives samples to machines in turn until the machine in turn has to prepare again.
func (d *division) assignRound() error {
	for d.left > 0 {
		i := d.smallest() // line 4
		if i < 0 {
			return d.stuck()
		}
		m := d.machines[i]
		if m.stale(d) || !d.choose(m) { // line 5
			return nil
		}
		c := m.nextSet()
		switch {
		case len(c.set) == 0:
			m.closed = true // nothing fits into its memory
			continue
		case d.rules.dppa && float64(m.used+c.cost)-d.rules.Beta*float64(m.size+len(c.set)) >= 0: // DW23 Alg. 1, line 7
			if err := m.reject(d.rules.Beta); err != nil {
				return err
			}
			continue
		case len(c.set) > 1 && m.load+d.weightOf(c.set) > m.limit: // line 6, the even split
			c.set = []uint32{d.finders[0].cheapest(m, c.set)} // line 7
		}
		for _, s := range c.set { // lines 8 and 9
			d.give(i, s)
		}
		m.assignSet(c.set)
	}
	return nil
}

// smallest is line 4: the machine with the least load relative to its capacity, the first among
// equals, or -1 if all are full or closed.
func (d *division) smallest() int {
	best, least := -1, math.Inf(1)
	for i, m := range d.machines {
		if fill := float64(m.load) / m.share; !m.closed && m.load < m.limit && fill < least {
			best, least = i, fill
		}
	}
	return best
}

// stuck is the error if samples are left and no machine can take any.
func (d *division) stuck() error {
	return fmt.Errorf("two-step partition: %d samples fit on no machine within theta = %d; raise theta, or use the algorithm best", d.left, d.theta)
}

// choose is line 5 for machine m: it makes sure that m.nextSet() is valid, an empty set if no
// sample fits into m's memory. It returns false if the search is worth making on all cores,
// together with those of the other machines.
func (d *division) choose(m *machine) bool {
	if d.sampler == nil {
		if m.nextSet().torn(d.free) {
			m.goBack(d)
			if d.rules.Alpha > 1 {
				return false
			}
			m.plan = append(m.plan, m.search(d, &d.finders[0], nil))
		}
		return true
	}
	for {
		drawn := d.sampler.draw(d.rules.Sample)
		if len(drawn) == 0 || d.rules.dppa && len(drawn) > 2*d.rules.Sample { // DW23 Alg. 1, line 4
			continue
		}
		m.plan = append(m.plan[:m.taken], m.search(d, &d.finders[0], drawn))
		if len(m.nextSet().set) > 0 || len(drawn) == d.left || !m.fitsAny(d) {
			return true
		}
	}
}

// weightOf returns the weight of a set of samples.
func (d *division) weightOf(set []uint32) (w int64) {
	for _, s := range set {
		w += int64(d.g.SampleWeight(int(s)))
	}
	return w
}

// give assigns sample s to machine i, without its costs.
func (d *division) give(i int, s uint32) {
	m := d.machines[i]
	d.assigned[s] = int32(i)
	d.free[s/64] &^= 1 << (s % 64)
	d.left--
	if d.sampler != nil {
		d.sampler.removeSample(s)
	}
	m.load += int64(d.g.SampleWeight(int(s)))
	m.size++
}

func isFree(free []uint64, s uint32) bool { return free[s/64]>>(s%64)&1 == 1 }

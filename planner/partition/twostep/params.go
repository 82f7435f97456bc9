package twostep

import (
	"cmp"
	"context"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// PlaceParams is the second step: DWW21 Alg. 2, which DW23 Alg. 2 repeats. The
// samples are divided as given; the machine that moves the least so far takes
// the parameter that adds the least to what it moves, again and again. It
// returns a machine for each parameter.
//
// A machine pays w for each parameter of weight w that its worker uses
// (line 4). Taking a parameter that lambda machines use, itself among them,
// changes that by w (lambda - 2): its own worker needs no transfer any more,
// the others' workers do. So each machine only has to go through its
// parameters once, in the order of that change, and the whole takes
// O(sum of lambda + m k). A group of parameters is taken as one; machines with
// faster links take as if they had moved less; fixed parameters are taken
// first. Where the machine in turn has no parameter left (the paper's line 7
// has nothing to choose from), the next one is asked.
func PlaceParams(ctx context.Context, g *graph.Graph, o partition.Options, samples []int32) ([]int32, error) {
	users := usersOf(g, samples, o.K)
	p := newPlacement(g, o, users)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.fix(o)
	p.queue()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for p.takeNext() { // line 5
	}
	return p.owner, nil
}

// A placement is the state of Alg. 2.
type placement struct {
	g     *graph.Graph
	users *users
	k     int
	owner []int32   // parameter -> machine, or -1 while it is in P'
	cost  []int64   // cost(P_i)
	speed []float64 // of each machine's link

	unitOf  []int32    // parameter -> its unit; nil where each is its own
	members [][]int32  // unit -> its parameters, where unitOf is not nil
	queues  [][]uint32 // machine -> the units that it uses, best first
}

func newPlacement(g *graph.Graph, o partition.Options, u *users) *placement {
	p := &placement{
		g: g, users: u, k: o.K,
		owner:  make([]int32, g.Params()),
		cost:   make([]int64, o.K),
		speed:  o.Speed,
		queues: make([][]uint32, o.K),
	}
	for param := range p.owner {
		p.owner[param] = -1 // lines 1 and 2
		u.each(param, func(i int) { p.cost[i] += int64(g.ParamWeight(param)) })
	}
	if o.Group != nil {
		p.group(o.Group)
	}
	return p
}

// group makes units of the parameters that must stay together.
func (p *placement) group(groups []int32) {
	p.unitOf = make([]int32, len(groups))
	units := map[int32]int32{}
	for param, group := range groups {
		unit, ok := units[group]
		if group < 0 || !ok {
			unit = int32(len(p.members))
			p.members = append(p.members, nil)
			if group >= 0 {
				units[group] = unit
			}
		}
		p.unitOf[param] = unit
		p.members[unit] = append(p.members[unit], int32(param))
	}
}

// paramsOf returns the parameters of a unit.
func (p *placement) paramsOf(unit uint32, one *[1]int32) []int32 {
	if p.unitOf == nil {
		one[0] = int32(unit)
		return one[:]
	}
	return p.members[unit]
}

// change is cost(P_i + p) - cost(P_i).
func (p *placement) change(i, param int) int64 {
	lambda := int64(p.users.count(param))
	if p.users.has(param, i) {
		lambda -= 2
	}
	return lambda * int64(p.g.ParamWeight(param))
}

// give is lines 8 and 9.
func (p *placement) give(i int, unit uint32) {
	var one [1]int32
	for _, param := range p.paramsOf(unit, &one) {
		p.cost[i] += p.change(i, int(param))
		p.owner[param] = int32(i)
	}
}

// fix gives the fixed parameters, with their groups, to their machines.
func (p *placement) fix(o partition.Options) {
	for param, i := range o.FixedParams {
		if i < 0 || p.owner[param] >= 0 {
			continue
		}
		if p.unitOf == nil {
			p.give(int(i), uint32(param))
		} else {
			p.give(int(i), uint32(p.unitOf[param]))
		}
	}
}

// queue sorts each machine's parameters for line 7: those that add least
// first, equal ones by number.
func (p *placement) queue() {
	if p.unitOf == nil && !p.g.Weighted() {
		p.queueByCount()
		return
	}
	type entry struct {
		change int64
		unit   uint32
	}
	crew := newCrew(p.k)
	defer crew.stop()
	crew.each(func(_, i int) {
		var entries []entry
		place := map[int32]int{} // group unit -> its entry
		for param := range p.owner {
			if p.owner[param] >= 0 || !p.users.has(param, i) {
				continue
			}
			if p.unitOf == nil {
				entries = append(entries, entry{p.change(i, param), uint32(param)})
				continue
			}
			unit := p.unitOf[param]
			if _, ok := place[unit]; !ok {
				place[unit] = len(entries)
				e := entry{unit: uint32(unit)}
				for _, member := range p.members[unit] {
					e.change += p.change(i, int(member))
				}
				entries = append(entries, e)
			}
		}
		slices.SortFunc(entries, func(a, b entry) int {
			return cmp.Or(cmp.Compare(a.change, b.change), cmp.Compare(a.unit, b.unit))
		})
		p.queues[i] = make([]uint32, len(entries))
		for at, e := range entries {
			p.queues[i][at] = e.unit
		}
	})
}

// queueByCount is queue where all weigh the same: the order is that of lambda,
// for all machines alike.
func (p *placement) queueByCount() {
	size := make([][]int, p.k) // machine -> lambda -> how many
	for i := range size {
		size[i] = make([]int, p.k+2)
	}
	for param := range p.owner {
		if p.owner[param] < 0 {
			lambda := p.users.count(param)
			p.users.each(param, func(i int) { size[i][lambda+1]++ })
		}
	}
	for i := range size {
		for lambda := range p.k + 1 {
			size[i][lambda+1] += size[i][lambda]
		}
		p.queues[i] = make([]uint32, size[i][p.k+1])
	}
	for param := range p.owner {
		if p.owner[param] < 0 {
			lambda := p.users.count(param)
			p.users.each(param, func(i int) {
				p.queues[i][size[i][lambda]] = uint32(param)
				size[i][lambda]++
			})
		}
	}
}

// takeNext is lines 6 to 9; false means that P' is empty.
func (p *placement) takeNext() bool {
	best := -1
	for i := range p.k { // line 6
		if p.skipTaken(i) && (best < 0 || p.less(i, best)) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	p.give(best, p.queues[best][0]) // line 7
	return true
}

// skipTaken drops what others took from the head of machine i's queue and
// reports whether something is left.
func (p *placement) skipTaken(i int) bool {
	q := p.queues[i]
	var one [1]int32
	for len(q) > 0 && p.owner[p.paramsOf(q[0], &one)[0]] >= 0 {
		q = q[1:]
	}
	p.queues[i] = q
	return len(q) > 0
}

// less reports whether machine i moves less than j for its link's speed.
func (p *placement) less(i, j int) bool {
	if p.speed == nil {
		return p.cost[i] < p.cost[j]
	}
	return float64(p.cost[i])/p.speed[i] < float64(p.cost[j])/p.speed[j]
}

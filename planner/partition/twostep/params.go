package twostep

import (
	"context"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// PlaceParams is the second step: DWW21 Alg. 2, which DW23 Alg. 2 repeats. Given the machine of
// each sample, the machine that moves the least so far takes the parameter that adds the least to
// what it moves, until all are taken. It returns the machine of each parameter.
//
// A machine pays w for each parameter of weight w that its worker uses (line 4). Taking a parameter
// that lambda machines use, itself among them, changes that by w (lambda - 2): its own worker no
// longer needs a transfer, and those of the others do. So each machine goes through its parameters
// once, in the order of that change, and everything takes O(sum of lambda + m log k). A group of
// parameters is taken as one; machines with faster links take as if they had moved less; fixed
// parameters are taken first. If the machine in turn has no parameter left, for which the paper's
// line 7 makes no provision, the next one takes its turn.
func PlaceParams(ctx context.Context, g *graph.Graph, o partition.Options, samples []int32) ([]int32, error) {
	users, err := usersOf(ctx, g, samples, o.K)
	if err != nil {
		return nil, err
	}
	p := newPlacement(g, o, users)
	p.fix(o)
	var rest supply
	if o.Group == nil {
		rest = newRanking(p)
	} else {
		rest = newQueues(p)
	}
	return p.owner, p.assignKeys(ctx, rest)
}

// A placement is the state of Alg. 2. What is taken at once is a unit: a parameter, or a group of
// them.
type placement struct {
	g     *graph.Graph
	users *users
	k     int
	// By parameter, its machine, or -1 while it is in P'.
	owner []int32
	// By machine, cost(P_i).
	cost  []int64
	speed []float64 // of each machine's link

	// By parameter, its unit; nil if each is its own.
	unitOf []int32
	// By unit, its parameters, unless unitOf is nil.
	members [][]int32
}

// A supply is P', the units that nobody has taken.
type supply interface {
	// next removes and returns the unit that adds the least to what machine i moves, the first
	// among equals, of those that i uses; ok is false if there is none.
	next(i int) (unit uint32, ok bool)
}

// newPlacement returns a placement without owners: every machine pays for all that it uses.
func newPlacement(g *graph.Graph, o partition.Options, u *users) *placement {
	p := &placement{
		g: g, users: u, k: o.K,
		owner: graph.MakeHuge[int32](g.Params()),
		cost:  make([]int64, o.K),
		speed: o.Speed,
	}
	for param := range p.owner {
		p.owner[param] = -1 // lines 1 and 2
		w := int64(g.ParamWeight(param))
		u.each(param, func(i int) { p.cost[i] += w })
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

// paramsOf returns the parameters of a unit. one is memory for a unit of one parameter.
func (p *placement) paramsOf(unit uint32, one *[1]int32) []int32 {
	if p.unitOf == nil {
		one[0] = int32(unit)
		return one[:]
	}
	return p.members[unit]
}

// change returns cost(P_i + p) - cost(P_i). It is negative only if machine i alone uses the
// parameter.
func (p *placement) change(i, param int) int64 {
	lambda := int64(p.users.count(param))
	if p.users.usedBy(param, i) {
		lambda -= 2
	}
	return lambda * int64(p.g.ParamWeight(param))
}

// give is lines 8 and 9: machine i takes a unit.
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

// assignKeys is lines 5 to 9.
func (p *placement) assignKeys(ctx context.Context, rest supply) error {
	const between = 1 << 14 // two looks at ctx
	turn := newTurns(p.k, p.less)
	for taken := 0; ; taken++ {
		if taken%between == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		i := turn.first() // line 6
		if i < 0 {
			return nil
		}
		if unit, ok := rest.next(i); ok { // line 7
			p.give(i, unit)
			turn.moved(i)
		} else {
			turn.leave(i)
		}
	}
}

// less reports whether machine i moves less than j relative to the speed of its link.
func (p *placement) less(i, j int) bool {
	if p.speed == nil {
		return p.cost[i] < p.cost[j]
	}
	return float64(p.cost[i])/p.speed[i] < float64(p.cost[j])/p.speed[j]
}

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
// once, in the order of that change, and everything takes O(sum of lambda + m log k). Machines
// with faster links take as if they had moved less. If the machine in turn has no parameter left, for which the paper's
// line 7 makes no provision, the next one takes its turn.
func PlaceParams(ctx context.Context, g *graph.Graph, o partition.Options, samples []int32) ([]int32, error) {
	users, err := usersOf(ctx, g, samples, o.K)
	if err != nil {
		return nil, err
	}
	p := newPlacement(g, o, users)
	return p.owner, p.assignKeys(ctx, newRanking(p))
}

// A placement is the state of Alg. 2.
type placement struct {
	g     *graph.Graph
	users *users
	k     int
	// By parameter, its machine, or -1 while it is in P'.
	owner []int32
	// By machine, cost(P_i).
	cost  []int64
	speed []float64 // of each machine's link
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
	return p
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

// give is lines 8 and 9: machine i takes a parameter.
func (p *placement) give(i int, param uint32) {
	p.cost[i] += p.change(i, int(param))
	p.owner[param] = int32(i)
}

// assignKeys is lines 5 to 9.
func (p *placement) assignKeys(ctx context.Context, rest *ranking) error {
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
		if param, ok := rest.next(i); ok { // line 7
			p.give(i, param)
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

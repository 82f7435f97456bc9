package multilevel

// A gains has what moving any vertex to any machine would save, and keeps it up to date while
// vertices move. With count(e, i) the pins of net e on machine i:
//
//	gain(v, j)    = benefit(v) - penalty(v, j)
//	benefit(v)    = the cost of v's nets that have no other pin on v's machine
//	penalty(v, j) = the cost of v's nets that have no pin on machine j
//
// A move of a vertex changes the gain of another only if a net that both have comes to a machine,
// leaves it, or has a single pin there before or after. That is what move looks for; most nets of
// most moves need nothing.
type gains struct {
	l    *level
	k    int
	part []int32
	// net*k + machine: the pins there.
	count []int32
	// By net, the number of machines with a pin: lambda.
	spread  []int32
	benefit []int32
	// vertex*k + machine.
	penalty []int32
	// By machine, the cost of the nets that it shares with others. It is a lower bound on what the
	// machine moves.
	traffic []int64

	// The vertices whose gains the last move has changed, each once.
	touched []int32
	// stamp is by vertex the round in which it was last touched. It replaces clearing a set at
	// every move.
	stamp []uint32
	round uint32
}

// newGains counts everything from scratch, in time proportional to pins times machines. It keeps
// part and changes it.
func newGains(l *level, k int, part []int32) *gains {
	g := &gains{
		l: l, k: k, part: part,
		count:   make([]int32, l.netCount()*k),
		spread:  make([]int32, l.netCount()),
		benefit: make([]int32, l.vertices()),
		penalty: make([]int32, l.vertices()*k),
		traffic: make([]int64, k),
		stamp:   make([]uint32, l.vertices()),
	}
	for e := range int32(l.netCount()) {
		count := g.at(e)
		for _, v := range l.pinsOf(e) {
			if count[part[v]]++; count[part[v]] == 1 {
				g.spread[e]++
			}
		}
		if g.spread[e] > 1 {
			for i, c := range count {
				if c > 0 {
					g.traffic[i] += int64(l.netCost[e])
				}
			}
		}
	}
	for v := range int32(l.vertices()) {
		g.benefit[v] = g.benefitOf(v)
		row := g.penalties(v)
		for _, e := range l.netsOf(v) {
			for j, c := range g.at(e) {
				if c == 0 {
					row[j] += l.netCost[e]
				}
			}
		}
	}
	return g
}

func (g *gains) at(e int32) []int32        { return g.count[int(e)*g.k : int(e+1)*g.k] }
func (g *gains) penalties(v int32) []int32 { return g.penalty[int(v)*g.k : int(v+1)*g.k] }

// of returns the gain of moving v to machine j.
func (g *gains) of(v, j int32) int32 { return g.benefit[v] - g.penalty[int(v)*g.k+int(j)] }

// benefitOf computes the benefit of v from its nets.
func (g *gains) benefitOf(v int32) (sum int32) {
	for _, e := range g.l.netsOf(v) {
		if g.at(e)[g.part[v]] == 1 {
			sum += g.l.netCost[e]
		}
	}
	return sum
}

// cost returns what moves in total: the sum of w (lambda - 1).
func (g *gains) cost() (sum int64) {
	for e, lambda := range g.spread {
		sum += int64(g.l.netCost[e]) * int64(lambda-1)
	}
	return sum
}

// move moves v to machine j and updates all gains. The vertices whose gains have changed, v among
// them, are in g.touched until the next move.
func (g *gains) move(v, j int32) {
	g.touched = g.touched[:0]
	g.round++
	g.touch(v)
	i := g.part[v]
	g.part[v] = j
	for _, e := range g.l.netsOf(v) {
		count, w := g.at(e), g.l.netCost[e]
		before := g.spread[e]
		// The order matters: with the target counted first a net never seems to be on no machine.
		switch count[j]++; count[j] {
		case 1: // e comes to j
			g.spread[e]++
			g.changePenalties(e, j, -w)
		case 2: // its pin there is no longer alone
			g.changeBenefit(e, j, v, -w)
		}
		switch count[i]--; count[i] {
		case 0: // e leaves i
			g.spread[e]--
			g.changePenalties(e, i, w)
		case 1: // a pin there is alone now
			g.changeBenefit(e, i, v, w)
		}
		g.traffic[i] += int64(w) * (shares(count[i], g.spread[e]) - shares(count[i]+1, before))
		g.traffic[j] += int64(w) * (shares(count[j], g.spread[e]) - shares(count[j]-1, before))
	}
	g.benefit[v] = g.benefitOf(v)
}

// shares returns 1 if a machine with count pins of a net spread over lambda machines transfers it,
// else 0.
func shares(count, lambda int32) int64 {
	if count > 0 && lambda > 1 {
		return 1
	}
	return 0
}

// touch adds v to touched, once per move.
func (g *gains) touch(v int32) {
	if g.stamp[v] != g.round {
		g.stamp[v] = g.round
		g.touched = append(g.touched, v)
	}
}

// changePenalties adds by to the penalty of all pins of net e for a machine that the net has come
// to or left.
func (g *gains) changePenalties(e, machine, by int32) {
	for _, u := range g.l.pinsOf(e) {
		g.penalty[int(u)*g.k+int(machine)] += by
		g.touch(u)
	}
}

// changeBenefit adds by to the benefit of the single pin of net e on a machine, apart from v.
func (g *gains) changeBenefit(e, machine, v, by int32) {
	for _, u := range g.l.pinsOf(e) {
		if u != v && g.part[u] == machine {
			g.benefit[u] += by
			g.touch(u)
			return
		}
	}
}

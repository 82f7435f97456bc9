package dynamic

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// A plain Locality: rates in a table, all loads and prices recomputed at every look,
// every machine tried.
type plain struct {
	o      LocalityOptions
	k      int
	speed  []float64
	sums   [][]float64 // [item][machine]
	seen   []float64
	alone  [][]float64 // [item]: uses, lately, of the only machine that made any
	rate   [][]float64 // likewise, bytes a step
	mass   float64
	calm   []int
	aged   float64
	extra  []float64
	owner  []int32 // as the last plan wanted them
	barred []bool
	gains  map[int32][]float64 // of the last plan, by item and machine
	more   bool                // than the last plan's bounds allowed
	tied   bool                // what the last plan moves is for rounding to decide
}

// sameGain reports whether two lists of moves differ first in where an item goes
// that would gain as much at either place: rounding decides then.
func (s *plain) sameGain(a, b []Move) bool {
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		if a[i].Item != b[i].Item {
			return false
		}
		gains := s.gains[a[i].Item]
		x, y := gains[a[i].To], gains[b[i].To]
		return math.Abs(x-y) <= 1e-9*(x+y)
	}
	return false
}

func (s *plain) loads(owner []int32) []float64 {
	loads := make([]float64, s.k)
	for p, rates := range s.rate {
		for i, r := range rates {
			if int32(i) != owner[p] {
				loads[i] += r
				loads[owner[p]] += r
			}
		}
	}
	return loads
}

func (s *plain) value(owner []int32) float64 {
	sum, total := 0.0, 0.0
	for i, l := range s.loads(owner) {
		v := (l + s.extra[i]) * s.speed[i]
		sum += math.Pow(v, power)
		total += v
	}
	return math.Pow(sum, 1./power) + s.o.Spread*total/float64(s.k)
}

func (s *plain) plan(it *Items, e *Epoch) []Move {
	for len(s.rate) < it.Len() {
		s.rate, s.sums, s.calm, s.seen = append(s.rate, make([]float64, s.k)), append(s.sums, make([]float64, s.k)), append(s.calm, 0), append(s.seen, 0)
		s.alone = append(s.alone, make([]float64, s.k))
	}
	for i, owner := range s.owner {
		if owner != it.Owner[i] {
			s.calm[i] = max(s.calm[i]-2, 0)
		}
	}
	keep := math.Exp(-e.Steps / s.o.Memory)
	s.mass = s.mass*keep + 1 - keep
	for _, rates := range s.sums {
		sum := 0.0
		for i := range rates {
			rates[i] *= keep
			sum += rates[i]
		}
		for i := range rates {
			if scaleOf() == 1 && (rates[i] <= least*sum || sum <= faint) { // written again: who hardly uses it is forgotten
				rates[i] = 0
			}
		}
	}
	for _, d := range e.Left {
		s.sums[d.Item][d.Machine] = 0
		if slices.Max(s.sums[d.Item]) == 0 {
			s.seen[d.Item] = 0
			clear(s.alone[d.Item])
		}
	}
	for p, sums := range s.sums {
		s.use(int32(p), it, e, sums, (1-keep)/e.Steps)
	}
	for p, sums := range s.sums {
		for i, sum := range sums {
			s.rate[p][i] = sum / s.mass
		}
	}
	if s.aged += e.Steps; s.aged >= s.o.Horizon {
		s.aged = 0
		for i := range s.calm {
			s.calm[i] = max(s.calm[i]-1, 0)
			s.seen[i] /= 2
		}
	}
	s.extra, s.more, s.tied = make([]float64, s.k), false, false
	owner := slices.Clone(it.Owner)
	var moves []Move
	for _, item := range s.order(e.Uses) {
		if to, ok := s.best(it, owner, item); ok && s.allows(e, it, moves, owner[item], to) {
			each := (float64(it.Size[item]) + s.o.Overhead) / s.o.Horizon
			s.extra[owner[item]] += each
			s.extra[to] += each
			owner[item] = to
			s.calm[item] = min(s.calm[item]+2, 16)
			moves = append(moves, Move{item, to})
		}
	}
	s.owner = owner // with the moves that shorten leaves out, as if they had been refused
	return s.shorten(e, it, moves)
}

// shorten leaves the moves of the n largest groups, for the n with the most moves per time. Of
// groups of one size, those of the first machines come first.
func (s *plain) shorten(e *Epoch, it *Items, moves []Move) []Move {
	sizes := map[Move]int{}
	for _, m := range moves {
		sizes[Move{it.Owner[m.Item], m.To}]++
	}
	if e.FewGroups == 0 || len(sizes) <= e.FewGroups {
		return moves
	}
	groups := slices.SortedFunc(maps.Keys(sizes), func(a, b Move) int {
		return cmp.Or(sizes[b]-sizes[a], int(a.Item-b.Item), int(a.To-b.To))
	})
	n := 1
	for more := 2; more <= len(groups); more++ {
		of, ofMore := 0, 0
		for i, g := range groups[:more] {
			ofMore += sizes[g]
			if i < n {
				of += sizes[g]
			}
		}
		if ofMore*(e.FewGroups+n) >= of*(e.FewGroups+more) {
			n = more
		}
	}
	if n == len(groups) {
		return moves
	}
	s.more = true
	return slices.DeleteFunc(slices.Clone(moves), func(m Move) bool {
		return !slices.Contains(groups[:n], Move{it.Owner[m.Item], m.To})
	})
}

// allows reports whether a plan with these moves may have one from a machine to another.
func (s *plain) allows(e *Epoch, it *Items, moves []Move, from, to int32) bool {
	groups := map[Move]bool{}
	for _, m := range moves {
		groups[Move{it.Owner[m.Item], m.To}] = true
	}
	if len(moves) >= s.o.MaxMoves || e.MaxGroups > 0 && len(groups) >= e.MaxGroups && !groups[Move{from, to}] {
		s.more = true
		return false
	}
	return true
}

// use changes an item's sums: all grow by what was used, in the parts of what
// was known and of what was seen now, each weighed by its number of uses.
func (s *plain) use(p int32, it *Items, e *Epoch, sums []float64, weight float64) {
	now, was, bytes := make([]float64, s.k), 0.0, 0.0
	for _, u := range e.Uses {
		if u.Item == p {
			now[u.Machine] = float64(u.Bytes)
			bytes += now[u.Machine]
		}
	}
	if bytes == 0 {
		return
	}
	for _, sum := range sums {
		was += sum
	}
	uses := bytes / (2 * float64(it.Size[p])) * e.Share
	if was == 0 {
		s.seen[p] = 0
		clear(s.alone[p])
	}
	seen, alone := s.seen[p], s.alone[p]
	for i, n := range now {
		if n < bytes {
			alone[i] = 0
			continue
		}
		others := max(seen-alone[i], 0)
		mine := 0.0
		if was > 0 {
			mine = max(seen*sums[i]/was-alone[i], 0)
		}
		if others > 0 && math.Pow((mine+0.25)/(others+1), alone[i]+uses) < 0.05 {
			seen = 0 // somebody else's now
		}
		alone[i] = min(alone[i]+uses, evidence)
		if seen == 0 {
			s.seen[p] = alone[i] - uses
		}
	}
	for i := range sums {
		part := seen / (seen + uses)
		share := (1 - part) * now[i] / bytes
		if was > 0 {
			share += part * sums[i] / was
		}
		sums[i] = (was + bytes*weight) * share
	}
	s.seen[p] = min(s.seen[p]+uses, evidence)
}

// order is by powers of two of the rate, then by number. Rates that fade in a
// common scale are in the same order but for where the powers lie, so the test
// gives the scale.
var scaleOf func() float64

func (s *plain) order(uses []Use) []int32 {
	var items []int32
	class := map[int32]int{}
	for _, u := range uses {
		if _, ok := class[u.Item]; !ok {
			sum := 0.0
			for _, r := range s.sums[u.Item] {
				sum += r
			}
			class[u.Item] = math.Ilogb(sum / scaleOf())
			items = append(items, u.Item)
		}
	}
	slices.SortStableFunc(items, func(a, b int32) int { return class[b] - class[a] })
	return items
}

// best is the machine of the steepest descent, if the value itself then falls.
func (s *plain) best(it *Items, owner []int32, item int32) (int32, bool) {
	loads := s.loads(owner)
	sum := 0.0
	for i := range loads {
		loads[i] = (loads[i] + s.extra[i]) * s.speed[i]
		sum += math.Pow(loads[i], power)
	}
	price := make([]float64, s.k)
	for i, l := range loads {
		if sum > 0 {
			price[i] = math.Pow(l, power-1) * math.Pow(sum, (1.-power)/power)
		}
		price[i] = (price[i] + s.o.Spread/float64(s.k)) * s.speed[i]
	}
	all := 0.0
	for _, r := range s.rate[item] {
		all += r
	}
	users, most := 0, 0.0
	for _, r := range s.rate[item] {
		if r > 0 {
			users++
		}
		most = max(most, r)
	}
	if s.calm[item] > 0 && 2*users >= s.k && 2*most <= all { // everybody's
		return 0, false
	}
	from := owner[item]
	cost := (float64(it.Size[item]) + s.o.Overhead) / s.o.Horizon * (1 + s.o.Margin*math.Pow(2, float64(s.calm[item])))
	to := int32(-1)
	most = 0
	s.gains[item] = make([]float64, s.k)
	for t := range int32(s.k) {
		if t == from || s.barred != nil && s.barred[t] {
			continue
		}
		unknown := all * s.o.Missed / s.seen[item] // uses by the owner that were not seen
		gain := price[from]*(all+unknown-2*(s.rate[item][from]+unknown)-cost) + price[t]*(2*s.rate[item][t]-all-unknown-cost)
		s.gains[item][t] = gain
		s.tied = s.tied || math.Abs(gain) <= 1e-6*(price[from]+price[t])*all
		if gain > most {
			to, most = t, gain
		}
	}
	if to < 0 {
		return 0, false
	}
	for t, gain := range s.gains[item] {
		s.tied = s.tied || int32(t) != to && near(gain, most)
	}
	// One use brings price x 2 bytes at the new owner's, or costs as much at the
	// old one's.
	mean, square := 0.0, 0.0
	for i, rate := range s.rate[item] {
		worth := 0.0
		switch int32(i) {
		case from:
			worth = -2 * price[i]
		case to:
			worth = 2 * price[i]
		}
		mean += rate / all * worth
		square += rate / all * worth * worth
	}
	doubt := s.o.Doubt * all * math.Sqrt(max(square-mean*mean, 0)/s.seen[item])
	if s.tied = s.tied || near(most, doubt); most < doubt {
		return 0, false
	}
	before := s.value(owner)
	owner[item] = to
	s.extra[from] += cost
	s.extra[to] += cost
	after := s.value(owner)
	owner[item] = from
	s.extra[from] -= cost
	s.extra[to] -= cost
	s.tied = s.tied || math.Abs(after-before) <= 1e-6*before
	return to, after < before*(1-nothing)
}

// near reports whether rounding may decide which of two numbers is larger.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*b }

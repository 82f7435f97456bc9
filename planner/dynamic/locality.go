package dynamic

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
)

// LocalityOptions tune [Locality]. Zero stands for the default.
type LocalityOptions struct {
	// Horizon is the number of steps in which a move must pay back (200).
	Horizon float64
	// Memory is the number of steps after which what was seen counts 1/e (20).
	Memory float64
	// Margin is by how much the gain must exceed the cost, as a part of it
	// (0.2); for an item that has moved lately it is doubled with every move,
	// and halved with every horizon.
	Margin float64
	// Spread is how much all machines' bytes count beside the busiest one's (1).
	Spread float64
	// Doubt is the number of standard deviations of chance by which a gain must
	// exceed nothing (1): the users of an item are estimated from a few uses.
	Doubt float64
	// Overhead is what a move costs beside the item's size, in bytes: messages
	// between the hosts that carry it out.
	Overhead float64
	// Missed is how many uses by the owner are taken to have been missed (0.25).
	// More keep items where they are until it is sure that they are another
	// machine's: an item that all use splits their requests where it is displaced.
	Missed float64
	// MaxMoves bounds the moves of one plan (none).
	MaxMoves int
}

func (o LocalityOptions) withDefaults() LocalityOptions {
	o.Horizon = cmp.Or(o.Horizon, 200)
	o.Memory = cmp.Or(o.Memory, 20)
	o.Margin = cmp.Or(o.Margin, 0.2)
	o.Spread = cmp.Or(o.Spread, 1)
	o.Missed = cmp.Or(o.Missed, 0.25)
	o.Doubt = cmp.Or(o.Doubt, 1)
	o.MaxMoves = cmp.Or(o.MaxMoves, math.MaxInt)
	return o
}

// nothing is the relative gain below which a change may be rounding alone.
const nothing = 1e-9

// power is the order of the norm that stands for the busiest machine.
const power = 8

// A Locality moves items next to their users if that relieves the busiest machines and pays for the
// move.
//
// Machine i moves L(i) bytes per step: a(p,i) for each item p that it uses and does not own, and
// for each item that it owns what the others use. The objective is |L| + spread x mean L, where |L|
// is the 8-norm of L with each L(i) divided by the speed of the machine's link: it is close to the
// maximum but has a slope at the second busiest machine too. With A the sum of a(p,.), moving p
// from o to t changes L(o) by 2 a(p,o) - A and L(t) by A - 2 a(p,t), and no other. The move itself
// adds (size + overhead) / horizon to both. a is an average over the past that fades, with shares
// that rest on the last uses of the item; see [rates]. A gain must exceed what chance makes of so
// few uses.
//
// Only items used in an epoch are looked at, the most used first; each costs time in proportion to
// its users. Loads are updated by differences and recomputed only when rates are rescaled.
//
// Invariants between calls: loads are those of rates with the owners in owner; owner, calm and the
// lists of rates have one element for each item that Plan has seen.
type Locality struct {
	o LocalityOptions
	k int
	// By machine, the inverse of its link's speed, scaled to a mean of 1.
	speed []float64
	rates rates
	loads []float64 // L, in units of rates.scale
	// before is L when the last plan began
	before []float64
	// Machines that can own nothing; nil if there are none.
	barred []bool
	// Bytes per step that the moves of this plan add, by machine.
	extra []float64
	base  []float64 // Epoch.Base
	// The owners that the loads are counted with.
	owner []int32
	// By item, how often its margin is doubled; see move.
	calm []uint8
	// Steps since calm was last lowered.
	aged float64
	// The sum of the weights of all epochs so far, which approaches 1. Rates are divided by it, so
	// that they are means from the first epoch on.
	mass  float64
	moves []Move
	// The groups with the numbers of their moves, and whether the bounds of the last plan kept others
	// from it.
	groups map[group]int
	more   bool
	// The items of the present epoch by rank.
	order []int32
	norm  norm
	// The number of plans made.
	plans uint32
	// By item, as far as Access has seen any.
	turns []turn
}

// A group is a pair of machines, one from and one to which items move.
type group struct{ from, to int32 }

// NewLocality returns a strategy that has seen nothing.
func NewLocality(o Options) *Locality {
	l := &Locality{o: o.Locality.withDefaults(), groups: map[group]int{}}
	l.rates.scale = 1
	l.shape(o)
	return l
}

// Name implements Strategy.
func (*Locality) Name() string { return "locality" }

// Loads returns the bytes per step of each machine, averaged over the remembered past, after the
// moves of the last plan.
func (l *Locality) Loads() []float64 {
	loads := make([]float64, l.k)
	for i, v := range l.loads {
		loads[i] = v * l.scale()
	}
	return loads
}

// scale converts rates to bytes a step.
func (l *Locality) scale() float64 { return l.rates.scale / max(l.mass, 1e-300) }

// Before returns the same before the moves of the last plan.
func (l *Locality) Before() []float64 { return slices.Clone(l.before) }

// Groups returns the number of pairs of machines between which the last plan moves items, and
// whether its bounds kept other moves from it.
func (l *Locality) Groups() (n int, more bool) { return len(l.groups), l.more }

// Plan implements Strategy. It considers each used item once, in order of use, and counts each move
// before it looks at the next item, so that a machine does not become the target of everything at
// once.
func (l *Locality) Plan(it *Items, e *Epoch) ([]Move, error) {
	l.follow(it)
	l.see(it, e)
	l.age(e.Steps)
	l.before, l.base = l.Loads(), e.Base
	clear(l.extra)
	l.moves, l.more = l.moves[:0], false
	clear(l.groups)
	l.plans++
	l.rank(e.Uses)
	l.norm.reset(l)
	for _, item := range l.order {
		if l.handed(item) {
			continue
		}
		to, ok := l.target(it, item)
		if !ok {
			continue
		}
		if len(l.moves) >= l.o.MaxMoves {
			l.more = true
			break
		}
		g := group{l.owner[item], to}
		if _, ok := l.groups[g]; !ok && e.MaxGroups > 0 && len(l.groups) >= e.MaxGroups {
			l.more = true
			continue
		}
		l.groups[g]++
		l.move(it, item, to)
	}
	if e.FewGroups > 0 && len(l.groups) > e.FewGroups {
		l.shorten(it, e.FewGroups)
	}
	return l.moves, nil
}

// shorten takes moves back, so that those of the largest groups are left: as many groups as have the
// most moves per time, if a plan takes that of few groups and that of its own. It does not weigh
// moves by what they gain, since those off the busiest machine would then go alone, plan after plan.
func (l *Locality) shorten(it *Items, few int) {
	groups := slices.SortedFunc(maps.Keys(l.groups), func(a, b group) int {
		return cmp.Or(cmp.Compare(l.groups[b], l.groups[a]), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	moves, most, kept := 0, 0.0, 0
	for i, g := range groups {
		moves += l.groups[g]
		if perTime := float64(moves) / float64(few+i+1); perTime >= most {
			most, kept = perTime, i+1
		}
	}
	if kept == len(groups) {
		return
	}
	for _, g := range groups[kept:] {
		delete(l.groups, g)
	}
	l.more = true
	l.moves = slices.DeleteFunc(l.moves, func(m Move) bool {
		from := it.Owner[m.Item]
		if _, ok := l.groups[group{from, m.To}]; ok {
			return false
		}
		l.takeBack(m.Item, from)
		return true
	})
}

// follow adopts new items, and owners that are not those of the last plan: the move was not carried
// out, or somebody else has moved the item.
func (l *Locality) follow(it *Items) {
	for len(l.owner) < it.Len() {
		l.owner = append(l.owner, it.Owner[len(l.owner)])
		l.calm = append(l.calm, 0)
		l.rates.appendItem()
	}
	for i, owner := range it.Owner {
		if l.owner[i] != owner {
			l.takeBack(int32(i), owner)
		}
	}
}

// takeBack undoes a planned move that is not made.
func (l *Locality) takeBack(item, owner int32) {
	l.reown(item, owner)
	l.calm[item] -= min(l.calm[item], 2)
}

// reown changes the loads to those with another owner of the item.
func (l *Locality) reown(item, to int32) {
	from := l.owner[item]
	l.owner[item] = to
	all, atFrom, atTo := 0.0, 0.0, 0.0
	for _, u := range l.rates.of(item) {
		all += float64(u.rate)
		switch u.machine {
		case from:
			atFrom = float64(u.rate)
		case to:
			atTo = float64(u.rate)
		}
	}
	l.loads[from] -= all - 2*atFrom
	l.loads[to] += all - 2*atTo
}

// see adds the uses of an epoch to the rates, which fade by the steps that have passed.
func (l *Locality) see(it *Items, e *Epoch) {
	steps := max(e.Steps, 1e-9)
	keep := math.Exp(-steps / l.o.Memory)
	l.mass = l.mass*keep + 1 - keep
	if l.rates.fade(keep) {
		for i := range l.loads { // rates.scale is 1 again
			l.loads[i] = 0
		}
		for item := range l.owner {
			l.count(int32(item))
		}
	}
	for _, d := range e.Left {
		if rate := l.rates.leave(d); l.owner[d.Item] != d.Machine {
			l.loads[l.owner[d.Item]] -= rate
			l.loads[d.Machine] -= rate
		}
	}
	weight, share := (1-keep)/steps/l.rates.scale, e.share()
	for from, to := range runs(e.Uses) {
		item := e.Uses[from].Item
		owner := l.owner[item]
		// A use is a pull and a push: the value twice.
		l.rates.use(item, e.Uses[from:to], e.Heard, weight, 2*float64(it.Size[item])/share, func(machine int32, by float64) {
			if owner != machine {
				l.loads[owner] += by
				l.loads[machine] += by
			}
		})
	}
}

// count adds an item's rates to the loads.
func (l *Locality) count(item int32) {
	owner := l.owner[item]
	for _, u := range l.rates.of(item) {
		if u.machine != owner {
			l.loads[owner] += float64(u.rate)
			l.loads[u.machine] += float64(u.rate)
		}
	}
}

// age lowers the margin of every item by one doubling, and halves what is known of its users'
// shares, once per horizon.
func (l *Locality) age(steps float64) {
	if l.aged += steps; l.aged < l.o.Horizon {
		return
	}
	l.aged = 0
	for i, c := range l.calm {
		if c > 0 {
			l.calm[i] = c - 1
		}
		l.rates.seen[i].uses /= 2
	}
}

// rank orders the items of the uses by their rate, highest first, in classes of powers of two, and
// by number within a class. It is a counting sort by the exponent of the float32.
func (l *Locality) rank(uses []Use) {
	var starts [257]int
	class := func(item int32) int {
		sum := float32(0)
		for _, u := range l.rates.of(item) {
			sum += u.rate
		}
		return 255 - int(math.Float32bits(sum)>>23&0xff)
	}
	classes := l.rates.scratch[:0]
	for from := range runs(uses) {
		c := class(uses[from].Item)
		classes = append(classes, uint8(c))
		starts[c+1]++
	}
	l.rates.scratch = classes
	for c := range 256 {
		starts[c+1] += starts[c]
	}
	l.order = slices.Grow(l.order[:0], len(classes))[:len(classes)]
	n := 0
	for from := range runs(uses) {
		c := classes[n]
		l.order[starts[c]] = uses[from].Item
		starts[c]++
		n++
	}
}

// runs yields where the uses of each item begin and end.
func runs(uses []Use) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for from := 0; from < len(uses); {
			to := from + 1
			for to < len(uses) && uses[to].Item == uses[from].Item {
				to++
			}
			if !yield(from, to) {
				return
			}
			from = to
		}
	}
}

// target returns the machine to which the item should move; ok is false if it should stay.
// Candidates are its users and the machine with the lowest price, which relieves a busy owner of an
// item that nobody uses much.
func (l *Locality) target(it *Items, item int32) (to int32, ok bool) {
	from := l.owner[item]
	users := l.rates.of(item)
	all, atFrom := 0.0, 0.0
	for _, u := range users {
		all += float64(u.rate)
		if u.machine == from {
			atFrom = float64(u.rate)
		}
	}
	if l.calm[item] > 0 && l.isEverybodys(users, all) {
		return 0, false
	}
	scale, seen := l.scale(), max(float64(l.rates.seen[item].uses), 1e-6)
	missed := all * l.o.Missed / seen
	move := l.cost(it, item) * (1 + l.margin(item))
	paid := l.norm.price(l, from)
	off := paid * (scale*(all-2*atFrom-missed) - move) // gained at from
	best, most, atBest := int32(-1), 0.0, 0.0
	try := func(t int32, at float64) {
		if l.barred != nil && l.barred[t] {
			return
		}
		if gain := off + l.norm.price(l, t)*(scale*(2*at-all-missed)-move); gain > most && t != from {
			best, most, atBest = t, gain, at
		}
	}
	for _, u := range users {
		try(u.machine, float64(u.rate))
	}
	try(l.norm.cheapest, l.rates.at(item, l.norm.cheapest))
	// The shares were estimated from few uses. Ask that the gain exceed its standard deviation.
	if best < 0 || most < l.o.Doubt*2*scale*all*chance(paid, atFrom/all, l.norm.price(l, best), atBest/all, seen) {
		return 0, false
	}
	// Prices are those of a small change, the most that a move can gain: the
	// norm is convex.
	if l.norm.after(l, from, best, scale*(2*atFrom-all)+move, scale*(all-2*atBest)+move) >= l.norm.value*(1-nothing) {
		return 0, false
	}
	return best, true
}

// isEverybodys reports whether at least half of the machines use the item and none has more than
// half of its uses. Such an item moves once, off a busy machine, and then stays: no place is better
// than another, and which machine uses it most is chance.
func (l *Locality) isEverybodys(users []user, all float64) bool {
	return 2*len(users) >= l.k && !slices.ContainsFunc(users, func(u user) bool { return 2*float64(u.rate) > all })
}

// chance returns the standard deviation of priceB x share b - priceA x share a, if the shares were
// counted in that many uses.
func chance(priceA, a, priceB, b, uses float64) float64 {
	mean := priceB*b - priceA*a
	return math.Sqrt(max(priceA*priceA*a+priceB*priceB*b-mean*mean, 0) / uses)
}

// cost returns what a move of the item adds to the bytes per step of each of its two machines, over
// the horizon.
func (l *Locality) cost(it *Items, item int32) float64 {
	return (float64(it.Size[item]) + l.o.Overhead) / l.o.Horizon
}

// margin returns by which fraction the gain must exceed the cost. It doubles with every recent
// move, so that an item cannot oscillate.
func (l *Locality) margin(item int32) float64 {
	return l.o.Margin * float64(int(1)<<min(l.calm[item], 16))
}

// move plans a move and updates the loads as if it had been carried out. calm rises by two and
// falls by one per horizon, so that even an item that moves once per horizon becomes calm.
func (l *Locality) move(it *Items, item, to int32) {
	from := l.owner[item]
	l.moves = append(l.moves, Move{item, to})
	l.reown(item, to)
	l.calm[item] = min(l.calm[item]+2, 16)
	each := l.cost(it, item)
	l.extra[from] += each
	l.extra[to] += each
	l.norm.change(l, from, to)
}

// This file places the parameters once the samples are placed: given the machine of each sample, it
// finds the owner of each parameter, so that the busiest machine moves little. The partitioners of
// packages best and parsa end with it.
//
// An item that machines use costs each of them its use, wherever it lies; the owner moves all - 2
// use in addition, since it answers the others and does not pull itself. So the sum of loads is
// least if each item lies with its largest user, and the choice among users only shifts load
// between machines.

package partition

import (
	"context"
	"math"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
)

// An item is a parameter.
type item struct {
	was int32 // machine that owned it before, or -1
	use []use
	all int64 // sum over use
}

// A use is the weight that an item has for a machine that uses it.
type use struct {
	machine int32
	weight  int64
}

// A placing assigns items to owners. load is what each machine moves with the owners so far; items
// that have no owner yet count with their users only.
type placing struct {
	speed []float64
	items []item
	owner []int32
	load  []int64
}

// OwnersAtUsers returns the owner of each parameter for samples on the given machines. The busiest
// machine moves as little as it can without a parameter on a machine that does not use it, which
// would add to the total. Heavy items are placed first, each at its least loaded user; then items
// move away from the busiest machine while that helps. Options may give link speeds
// and an earlier assignment.
func OwnersAtUsers(ctx context.Context, g *graph.Graph, samples []int32, o Options) ([]int32, error) {
	return place(ctx, g, samples, o, false)
}

// FlatOwners does what [OwnersAtUsers] does; then, if machines remain above the mean, it lets
// others own parameters that they do not use. That adds to the total what is needed to level the
// machines, and no more.
func FlatOwners(ctx context.Context, g *graph.Graph, samples []int32, o Options) ([]int32, error) {
	return place(ctx, g, samples, o, true)
}

// place is both. lend allows owners that do not use what they own.
func place(ctx context.Context, g *graph.Graph, samples []int32, o Options, lend bool) ([]int32, error) {
	items, err := itemsOf(ctx, g, samples, o)
	if err != nil {
		return nil, err
	}
	pl := &placing{speed: o.Speed, items: items, owner: make([]int32, len(items)), load: make([]int64, o.K)}
	if pl.speed == nil {
		pl.speed = slices.Repeat([]float64{1}, o.K)
	}
	if err := pl.greedy(ctx); err != nil {
		return nil, err
	}
	if err := pl.flatten(ctx, lend); err != nil {
		return nil, err
	}
	return pl.owner, nil
}

// itemsOf returns an item for each parameter, in parallel over parameters.
func itemsOf(ctx context.Context, g *graph.Graph, samples []int32, o Options) ([]item, error) {
	type part struct {
		_ [64]byte
		// The padding keeps the hot fields of goroutines on cache lines of their own.
		seen []int32 // 1 + the last parameter that the machine uses
		uses []use   // one piece of memory for many items
		_    [64]byte
	}
	items := make([]item, g.Params())
	parts := make([]part, LoopParts())
	err := ShareLoop(ctx, len(items), func(number, first, last int) {
		of := &parts[number]
		if of.seen == nil {
			of.seen = make([]int32, o.K)
		}
		for p := first; p < last; p++ {
			// Items share large slices; a slice of its own for each of millions would cost more
			// than its content.
			if len(of.uses)+o.K > cap(of.uses) {
				of.uses = make([]use, 0, max(1<<16, o.K))
			}
			from := len(of.uses)
			for _, s := range g.SamplesOf(p) {
				if i := samples[s]; of.seen[i] != int32(p)+1 {
					of.seen[i] = int32(p) + 1
					of.uses = append(of.uses, use{i, int64(g.ParamWeight(p))})
				}
			}
			it := item{was: wasAt(o, p), use: of.uses[from:len(of.uses):len(of.uses)]}
			it.all = int64(len(it.use)) * int64(g.ParamWeight(p))
			items[p] = it
		}
	})
	return items, err
}

// wasAt returns the machine that owned parameter p in the earlier assignment, or -1.
func wasAt(o Options, p int) int32 {
	if o.From == nil {
		return -1
	}
	return o.From.Params[p]
}

// kept returns the owner that the item keeps, or -1: its earlier owner, if that still uses it.
func (it *item) kept() int32 {
	for _, u := range it.use {
		if u.machine == it.was {
			return it.was
		}
	}
	return -1
}

// extra returns what owning the item costs machine i in addition to its use. It is negative if the
// machine has more than half of the uses.
func (it *item) extra(i int32) int64 {
	for _, u := range it.use {
		if u.machine == i {
			return it.all - 2*u.weight
		}
	}
	return it.all
}

// ratio returns the load of machine i relative to its speed, with more added.
func (pl *placing) ratio(i int32, more int64) float64 {
	return float64(pl.load[i]+more) / pl.speed[i]
}

// greedy gives every item an owner: first those that keep theirs, then the heaviest, since light
// ones can level out what heavy ones have left.
func (pl *placing) greedy(ctx context.Context) error {
	// Every user pays its use whoever owns the item.
	for i := range pl.items {
		for _, u := range pl.items[i].use {
			pl.load[u.machine] += u.weight
		}
	}
	for i := range pl.items {
		it := &pl.items[i]
		if pl.owner[i] = it.kept(); pl.owner[i] >= 0 {
			pl.load[pl.owner[i]] += it.extra(pl.owner[i])
		}
	}
	order := pl.order()
	return EachPiece(ctx, len(order), func(from, to int) {
		for _, i := range order[from:to] {
			if pl.owner[i] >= 0 {
				continue
			}
			it := &pl.items[i]
			at := pl.cheapest(it)
			pl.owner[i] = at
			pl.load[at] += it.extra(at)
		}
	})
}

// order returns the items in the order in which greedy places them: first those with a single user,
// which owns them whatever the loads, then by falling weight. It is a radix sort of the complement,
// as there are millions.
func (pl *placing) order() []uint32 {
	keys, order := make([]uint64, len(pl.items)), make([]uint32, len(pl.items))
	for i := range pl.items {
		order[i] = uint32(i)
		if it := &pl.items[i]; len(it.use) > 1 {
			keys[i] = math.MaxUint64 - uint64(it.all)
		}
	}
	RadixSort(keys, order)
	return order
}

// cheapest returns the user of the item that would be the least loaded as its owner.
func (pl *placing) cheapest(it *item) int32 {
	at, least := int32(0), 0.0
	for n, u := range it.use {
		if r := pl.ratio(u.machine, it.all-2*u.weight); n == 0 || r < least {
			at, least = u.machine, r
		}
	}
	return at
}

// Package owner puts parameters on machines when the samples are placed
// already: a graph and the samples' machines go in, the owner of each parameter
// comes out, such that the busiest machine moves little. The partitioners of
// packages best and parsa end with it.
package owner

import (
	"cmp"
	"slices"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// An item is what gets one owner: a parameter, or a group of them.
type item struct {
	fixed int32 // machine that must own it, or -1
	use   []use
	all   int64 // sum over use
}

// A use is the weight of an item's parameters that a machine uses.
type use struct {
	machine int32
	weight  int64
}

// A placing assigns items to owners, given the samples' machines. An item costs
// each machine that uses it that use, and its owner all - 2 use besides: it
// answers the others and asks nobody itself.
type placing struct {
	speed []float64
	items []item
	owner []int32
	load  []int64
}

// AtUsers returns the owner of each parameter for samples on the given machines,
// so that the busiest machine moves as little as it can without a parameter
// lying where nobody uses it, which keeps the total at its least: heavy ones
// first, each to the least loaded of its users, then from the busiest machine to
// others while that helps. Options may fix parameters, keep groups together and
// give link speeds.
func AtUsers(g *graph.Graph, samples []int32, o partition.Options) []int32 {
	return place(g, samples, o, false)
}

// Flat goes on from what [AtUsers] does: where machines stay above the mean, it
// lets others own parameters that they do not use. That adds to the total what
// it must to level the machines, and no more.
func Flat(g *graph.Graph, samples []int32, o partition.Options) []int32 {
	return place(g, samples, o, true)
}

func place(g *graph.Graph, samples []int32, o partition.Options, lend bool) []int32 {
	items, itemOf := itemsOf(g, samples, o)
	pl := &placing{speed: o.Speed, items: items, owner: make([]int32, len(items)), load: make([]int64, o.K)}
	if pl.speed == nil {
		pl.speed = slices.Repeat([]float64{1}, o.K)
	}
	pl.greedy()
	pl.flatten(lend)
	params := make([]int32, g.Params())
	for p := range params {
		params[p] = pl.owner[itemOf[p]]
	}
	return params
}

// itemsOf returns the items, and the item of each parameter.
func itemsOf(g *graph.Graph, samples []int32, o partition.Options) ([]item, []int32) {
	m := g.Params()
	itemOf := make([]int32, m)
	items := make([]item, 0, m)
	ofGroup := map[int32]int32{}
	seen := make([]int32, o.K) // 1 + the last parameter that the machine uses
	var uses []use             // one piece of memory for many items
	for p := range m {
		if len(uses)+o.K > cap(uses) {
			uses = make([]use, 0, max(1<<16, o.K))
		}
		from := len(uses)
		for _, s := range g.SamplesOf(p) {
			if i := samples[s]; seen[i] != int32(p)+1 {
				seen[i] = int32(p) + 1
				uses = append(uses, use{i, int64(g.ParamWeight(p))})
			}
		}
		own := uses[from:len(uses):len(uses)]
		grouped := o.Group != nil && o.Group[p] >= 0
		if grouped {
			if it, ok := ofGroup[o.Group[p]]; ok {
				itemOf[p] = it
				items[it].add(own)
				continue
			}
			ofGroup[o.Group[p]] = int32(len(items))
		}
		itemOf[p] = int32(len(items))
		items = append(items, item{fixed: -1, use: own})
	}
	for i := range items {
		for _, u := range items[i].use {
			items[i].all += u.weight
		}
	}
	for p, machine := range o.FixedParams {
		if machine >= 0 {
			items[itemOf[p]].fixed = machine
		}
	}
	return items, itemOf
}

// add adds the uses of another parameter of the group.
func (it *item) add(more []use) {
next:
	for _, u := range more {
		for i := range it.use {
			if it.use[i].machine == u.machine {
				it.use[i].weight += u.weight
				continue next
			}
		}
		it.use = append(it.use, u)
	}
}

// extra returns what owning the item costs machine i beyond its use.
func (it *item) extra(i int32) int64 {
	for _, u := range it.use {
		if u.machine == i {
			return it.all - 2*u.weight
		}
	}
	return it.all
}

func (pl *placing) ratio(i int32, more int64) float64 {
	return float64(pl.load[i]+more) / pl.speed[i]
}

// greedy gives every item an owner, the heaviest first: light ones can level
// out what heavy ones left.
func (pl *placing) greedy() {
	for i := range pl.items {
		for _, u := range pl.items[i].use {
			pl.load[u.machine] += u.weight
		}
	}
	order := make([]int32, len(pl.items))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		x, y := &pl.items[a], &pl.items[b]
		if (len(x.use) == 1) != (len(y.use) == 1) {
			return cmp.Compare(len(x.use), len(y.use)) // owned by their only user, whatever the loads
		}
		return cmp.Or(cmp.Compare(y.all, x.all), cmp.Compare(a, b))
	})
	for _, i := range order {
		it := &pl.items[i]
		at := it.fixed
		if at < 0 {
			at = pl.cheapest(it)
		}
		pl.owner[i] = at
		pl.load[at] += it.extra(at)
	}
}

// cheapest returns the user of the item that would be least loaded as owner.
func (pl *placing) cheapest(it *item) int32 {
	at, least := int32(0), 0.0
	for n, u := range it.use {
		if r := pl.ratio(u.machine, it.all-2*u.weight); n == 0 || r < least {
			at, least = u.machine, r
		}
	}
	return at
}

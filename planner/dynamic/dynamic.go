// Package dynamic decides, while a job trains, which machine's server should own which key. A
// strategy receives, epoch after epoch, how much each machine has used each item, and returns the
// items that should move before the next epoch.
//
// Strategies are pure: no clock, no socket, no goroutine. The live planner and the simulator drive
// them. They are deterministic in their inputs and seed, and not safe for concurrent use.
//
// An item is one key, or a block of cold keys that move together; items are numbered from 0. Each
// machine is a worker and a server. A use of an item at its owner costs nothing; elsewhere both the
// owner's and the user's link carry it.
//
//   - [Locality] is psidecar's own strategy: items go next to their users if that pays.
//   - [DPPA] is Duan and Wu 2023 (DW23), Alg. 3 and 4, which balances loads.
//   - [MGP] is the baseline of DW23 that repartitions from scratch.
//   - reactive moves an item to whoever uses it, as Lapse does; home and random are the ends of the
//     scale.
package dynamic

import (
	"fmt"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/internal/splitmix"
)

// Items are the items' owners, homes and sizes, by item. The caller keeps them, appends new items
// and changes owners; strategies only read them.
type Items struct {
	Owner []int32   // machine
	Home  []int32   // machine whose server's range it lies in
	Size  []float32 // bytes that a move sends from one machine to another
}

// Len returns the number of items.
func (it *Items) Len() int { return len(it.Owner) }

// A Use is what one machine's workers did with one item in an epoch.
type Use struct {
	Item, Machine int32
	// Bytes are those that crossed the network, or would have with the owner elsewhere. They must
	// be above 0.
	Bytes float32
}

// A Batch is one request's keys: of a machine's worker, in one step.
type Batch struct {
	Machine int32
	Pulled  []int32 // items, ascending
	Updated []int32 // those whose gradient exceeded epsilon, ascending
}

// An Epoch is what happened since the epoch before.
type Epoch struct {
	// Steps is the number of steps of each worker.
	Steps float64
	// Uses are sorted by item, then machine, with each pair once.
	Uses []Use
	// Batches has the newest batch of every machine, oldest first, as far as they are known.
	Batches []Batch
	// Share is the fraction of the steps in which uses were seen; uses are scaled up to all steps.
	// 0 means all.
	Share float64
	// Heard marks the machines whose uses were seen in this epoch; the uses of others are those of
	// an earlier one. nil means all.
	Heard []bool
	// Left has what machines have turned away from, sorted by item, then machine: what they did
	// with these items before says nothing about what they will do.
	Left []Departure
	// Base is what each machine moves in a step beside these uses, for other jobs; nil means
	// nothing. Plans lower the sum at the busiest machine.
	Base []float64
	// MaxGroups bounds the pairs of machines, one that gives and one that takes, between which a
	// plan of locality moves items. What goes between two machines is moved together, so that a
	// plan takes the time of its groups, not of its moves. 0 means no bound.
	MaxGroups int
	// FewGroups is how many groups take as long as a plan does apart from its groups. A plan of
	// more is cut short to its largest groups, as many as have the most moves per time: items of
	// workers that have turned to each other's do not wait for many single ones. 0 means that no
	// plan is cut.
	FewGroups int
}

// share returns Share with its default.
func (e *Epoch) share() float64 {
	if e.Share == 0 {
		return 1
	}
	return e.Share
}

// A Departure is an item that a machine does not use any more.
type Departure struct{ Item, Machine int32 }

// A Move gives an item another owner.
type Move struct{ Item, To int32 }

// A Strategy decides what moves. It may keep state between calls, so Items must be the same ones at
// each call, possibly more of them, with the owners that they really have: a strategy must cope
// with moves that were not carried out. The result is valid until the next call.
type Strategy interface {
	Name() string
	Plan(it *Items, e *Epoch) ([]Move, error)
}

// A Reactor is a strategy that need not wait for the end of an epoch: it may move an item to a
// machine at the moment when that uses it.
type Reactor interface {
	Strategy
	// Access is called before a machine uses an item, and reports whether the item moves there
	// first. A remote use costs stay bytes, the move costs move bytes.
	Access(it *Items, item, machine int32, stay, move float64) bool
}

// Options configure strategies. The zero value of all but Machines stands for the
// default.
type Options struct {
	Machines int
	Speed    []float64 // relative link speed of each machine; nil: all alike
	Barred   []bool    // locality: machines without a server; nil: none
	Seed     uint64
	Locality LocalityOptions
	DPPA     DPPAOptions
}

// Names returns the names of all strategies, the baselines first.
func Names() []string { return []string{"home", "random", "dppa", "mgp", "locality", "reactive"} }

// New returns the strategy of that name.
func New(name string, o Options) (Strategy, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	switch name {
	case "home":
		return home{}, nil
	case "random":
		return &random{machines: o.Machines, seed: o.Seed}, nil
	case "dppa":
		return NewDPPA(o), nil
	case "mgp":
		return NewMGP(o), nil
	case "locality":
		return NewLocality(o), nil
	case "reactive":
		return reactive{}, nil
	}
	return nil, fmt.Errorf("no strategy %q: use %s", name, strings.Join(Names(), ", "))
}

// check returns the first fault of the options, nil if there is none.
func (o *Options) check() error {
	switch {
	case o.Machines < 1 || o.Machines > maxMachines:
		return fmt.Errorf("%d machines: want 1 to %d", o.Machines, maxMachines)
	case o.Speed != nil && len(o.Speed) != o.Machines:
		return fmt.Errorf("%d link speeds for %d machines", len(o.Speed), o.Machines)
	case o.Barred != nil && len(o.Barred) != o.Machines:
		return fmt.Errorf("%d machines, but server flags for %d", o.Machines, len(o.Barred))
	}
	return nil
}

// maxMachines is how many machines a job may have; [rates] counts the users of an item in 16 bits.
const maxMachines = 1 << 15

// Loads returns the bytes that each machine moved in the epoch with the present owners. A remote
// use counts at both its ends.
func Loads(it *Items, uses []Use, machines int) []float64 {
	loads := make([]float64, machines)
	for _, u := range uses {
		if owner := it.Owner[u.Item]; owner != u.Machine {
			loads[owner] += float64(u.Bytes)
			loads[u.Machine] += float64(u.Bytes)
		}
	}
	return loads
}

// home leaves every key at home.
type home struct{}

func (home) Name() string { return "home" }

// Plan returns keys that somebody has moved to their homes.
func (home) Plan(it *Items, _ *Epoch) ([]Move, error) {
	var moves []Move
	for i, owner := range it.Owner {
		if owner != it.Home[i] {
			moves = append(moves, Move{int32(i), it.Home[i]})
		}
	}
	return moves, nil
}

// random gives every new item to a random machine, once.
type random struct {
	machines int
	seed     uint64
	placed   int
}

func (*random) Name() string { return "random" }

func (r *random) Plan(it *Items, _ *Epoch) ([]Move, error) {
	var moves []Move
	for ; r.placed < it.Len(); r.placed++ {
		to := int32(splitmix.Next(r.seed+uint64(r.placed)*splitmix.Golden) % uint64(r.machines))
		if to != it.Owner[r.placed] {
			moves = append(moves, Move{int32(r.placed), to})
		}
	}
	return moves, nil
}

// reactive moves an item to any machine that uses it, as Lapse's relocation does.
type reactive struct{}

func (reactive) Name() string                        { return "reactive" }
func (reactive) Plan(*Items, *Epoch) ([]Move, error) { return nil, nil }

func (reactive) Access(it *Items, item, to int32, _, _ float64) bool { return it.Owner[item] != to }

// busiest returns the machines with the largest and the smallest load, the lowest number among
// equals.
func busiest(loads []float64) (most, least int32) {
	for i, l := range loads {
		if l > loads[most] {
			most = int32(i)
		}
		if l < loads[least] {
			least = int32(i)
		}
	}
	return most, least
}

// ascending reports whether the items of a batch rise.
func ascending(items []int32) bool {
	return slices.IsSortedFunc(items, func(a, b int32) int {
		if a < b {
			return -1
		}
		return 1 // equal ones are out of order too
	})
}

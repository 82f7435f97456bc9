// Package simulate tries strategies on a trace of requests: what would each machine have sent and
// received if the strategy had moved the keys?
//
// A [Simulation] takes the requests of a job in order and returns, for each strategy and epoch, the
// bytes of the busiest machine, the total, and those of the moves among them. [RunRecorded] does
// that with recordings of real jobs. psidecar simulate and the evaluation call it.
//
// All strategies see one pass over the trace, so they can be compared request by request. Each
// knows only the past: it decides at the end of an epoch, and its moves are paid by both machines
// in the epoch that follows. A [dynamic.Reactor] may in addition move a key when it is used.
//
// # Prices
//
// A pull costs two keys and a value, a push a key and a value, both at worker and server if these
// are on different machines; a move costs a key and a value. A reactive move also pays for its
// messages by way of the key's home, as Lapse's relocation does. Latency, order and encoding are
// not simulated.
//
// [Aggregation] estimates from the same recordings what sharing pulls and summing pushes on each
// host would save.
package simulate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/psidecar/psidecar/planner/dynamic"
)

// A Request is one worker's use of keys in a step. The simulation does not keep it.
type Request struct {
	Worker int // from 0
	// Step is the step of this worker, from 0; it does not fall.
	Step       int
	Push, Pull bool
	Keys       []uint64
	// Sizes are the bytes of each key's value, len(Keys); nil if all values have Size.
	Sizes []uint32
	Size  uint32
}

// Options configure a simulation.
type Options struct {
	// Machine is the machine of each worker.
	Machine []int
	// Machines is the number of machines; Home returns the machine whose server has the key at
	// home.
	Machines int
	Home     func(key uint64) int32
	// EpochSteps is the number of steps of each worker, in the mean, after which strategies decide.
	EpochSteps int
	// KeyBytes is the size of a key in a message; 8 in PS-lite.
	KeyBytes int
	// Strategies are names of [dynamic.Names].
	Strategies []string
	Dynamic    dynamic.Options // Machines need not be set
	// Batches is how many of its newest batches each worker shows in an epoch.
	Batches int
	// Planned lets locality move keys at the ends of epochs only, as the live planner does.
	Planned bool
}

// An Epoch is the outcome of a strategy in one epoch, in bytes. What crosses from one machine to
// another counts at both ends in Busiest, and once in the others.
type Epoch struct {
	// Busiest is of the machine that sent and received most, moves included.
	Busiest float64 `json:"busiest"`
	// Total includes moves.
	Total     float64 `json:"total"`
	Migration float64 `json:"migration"`
	Moves     int     `json:"moves"`
}

// A Result is the outcome of a strategy.
type Result struct {
	Strategy string  `json:"strategy"`
	Epochs   []Epoch `json:"epochs"`
	// Sum adds up the epochs; its Busiest is the sum of each epoch's busiest machine.
	Sum Epoch `json:"sum"`
}

// A Simulation takes requests and computes the results. It is for one goroutine. Memory grows with
// the number of keys, times strategies, but not with that of requests.
type Simulation struct {
	o Options
	// The item of each key.
	number map[uint64]int32
	home   []int32
	// By item, the bytes of a move.
	size []float32
	runs []*run
	// reactor is set if some strategy looks at every access.
	reactor bool
	// By machine.
	used []usage
	// By worker.
	batches []*batch
	epoch   int
	// By worker, the number of steps begun.
	steps []int
	// The sum of steps, and what it was when the epoch began.
	begun int
	first int
	uses  []dynamic.Use
}

// A usage is what one machine has used in the epoch. touched lists the items with bytes, so that
// clearing costs no more than what was used.
type usage struct {
	bytes   []float32 // by item
	touched []int32
}

// A run is one strategy at work, with owners of its own.
type run struct {
	strategy dynamic.Strategy
	// nil if the strategy only plans.
	reactor dynamic.Reactor
	items   dynamic.Items
	// By machine, the bytes of moves in this epoch.
	moved []float64
	// By machine, the bytes of uses in this epoch. For a strategy that only plans they are computed
	// at its end.
	traffic []float64
	moves   int
	result  Result
}

// A batch collects what a worker pulls and pushes in a step; newest are its last complete ones.
type batch struct {
	pulled, pushed []int32
	newest         []dynamic.Batch
}

// New returns a simulation that has seen nothing, or an error that names the faulty option.
func New(o Options) (*Simulation, error) {
	switch {
	case o.EpochSteps < 1:
		return nil, fmt.Errorf("an epoch of %d steps: want 1 or more", o.EpochSteps)
	case o.KeyBytes < 1:
		return nil, fmt.Errorf("keys of %d bytes: want 1 or more", o.KeyBytes)
	case len(o.Machine) == 0:
		return nil, fmt.Errorf("no workers")
	// Every request indexes by these.
	case slices.Max(o.Machine) >= o.Machines || slices.Min(o.Machine) < 0:
		return nil, fmt.Errorf("workers on machines %v: there are %d", o.Machine, o.Machines)
	}
	o.Dynamic.Machines = o.Machines
	o.Batches = max(o.Batches, 1)
	s := &Simulation{o: o, number: map[uint64]int32{}, used: make([]usage, o.Machines), steps: make([]int, len(o.Machine))}
	for range o.Machine {
		s.batches = append(s.batches, &batch{})
	}
	for _, name := range o.Strategies {
		strategy, err := dynamic.New(name, o.Dynamic)
		if err != nil {
			return nil, err
		}
		r := &run{strategy: strategy, moved: make([]float64, o.Machines), traffic: make([]float64, o.Machines), result: Result{Strategy: name}}
		if reactor, ok := strategy.(dynamic.Reactor); ok && !(o.Planned && name == "locality") {
			r.reactor, s.reactor = reactor, true
		}
		s.runs = append(s.runs, r)
	}
	return s, nil
}

// Add takes the next request. The first request after the end of an epoch makes all strategies
// decide before it counts.
func (s *Simulation) Add(r *Request) error {
	if r.Worker < 0 || r.Worker >= len(s.o.Machine) || r.Sizes != nil && len(r.Sizes) != len(r.Keys) {
		return fmt.Errorf("a request of worker %d of %d with %d sizes of %d keys", r.Worker, len(s.o.Machine), len(r.Sizes), len(r.Keys))
	}
	// A new step of this worker. Requests of an earlier step may still come late; they count in the
	// present epoch.
	if r.Step >= s.steps[r.Worker] {
		// An epoch ends between steps: the first request of the step after it triggers the
		// decision.
		if s.begun-s.first >= s.o.EpochSteps*len(s.o.Machine) {
			if err := s.decide(); err != nil {
				return err
			}
		}
		s.begun += r.Step + 1 - s.steps[r.Worker]
		s.steps[r.Worker] = r.Step + 1
		s.batches[r.Worker].close(int32(s.o.Machine[r.Worker]), s.o.Batches)
	}
	s.use(r)
	return nil
}

// use counts the uses of a request's keys.
func (s *Simulation) use(r *Request) {
	machine := int32(s.o.Machine[r.Worker])
	used, b := &s.used[machine], s.batches[r.Worker]
	for i, key := range r.Keys {
		size := r.Size
		if r.Sizes != nil {
			size = r.Sizes[i]
		}
		item := s.item(key, size)
		bytes := float32(0)
		if r.Pull { // the request and its answer
			bytes += float32(2*s.o.KeyBytes) + float32(size)
			b.pulled = append(b.pulled, item)
		}
		if r.Push {
			b.pushed = append(b.pushed, item)
			bytes += float32(size)
			if !r.Pull {
				bytes += float32(s.o.KeyBytes)
			}
		}
		if int(item) >= len(used.bytes) {
			// Items appear as the trace goes on; a machine's list grows when it first uses a later
			// one.
			used.bytes = append(used.bytes, make([]float32, int(item)+1-len(used.bytes))...)
		}
		if used.bytes[item] == 0 {
			used.touched = append(used.touched, item)
		}
		used.bytes[item] += bytes
		if s.reactor {
			s.access(item, machine, float64(bytes))
		}
	}
}

// item returns the item of a key, a new one at home if the key is new. The size of a move is that
// of the largest value seen, since a key is moved with its value whatever the request at hand
// carries.
func (s *Simulation) item(key uint64, size uint32) int32 {
	n, ok := s.number[key]
	if !ok {
		n = int32(len(s.home))
		s.number[key] = n
		s.home = append(s.home, s.o.Home(key))
		s.size = append(s.size, 0)
		// Every strategy has owners of its own, which begin at home.
		for _, r := range s.runs {
			r.items.Owner = append(r.items.Owner, s.home[n])
		}
	}
	s.size[n] = max(s.size[n], float32(s.o.KeyBytes)+float32(size))
	return n
}

// access shows a use to the reactors. A key that moves is asked for at its home, which tells the
// owner, which sends it, as in Lapse: two messages with a key, as far as they cross machines, and
// the value.
func (s *Simulation) access(item, machine int32, bytes float64) {
	for _, r := range s.runs {
		if r.reactor == nil {
			continue
		}
		r.items.Home, r.items.Size = s.home, s.size
		owner, home, ask, size := r.items.Owner[item], s.home[item], float64(s.o.KeyBytes), float64(s.size[item])
		cost := size
		if machine != home {
			cost += ask
		}
		if home != owner {
			cost += ask
		}
		if r.reactor.Access(&r.items, item, machine, bytes, cost) {
			between(r.moved, machine, home, ask)
			between(r.moved, home, owner, ask)
			between(r.moved, owner, machine, size)
			r.items.Owner[item] = machine
			owner = machine
			r.moves++
		}
		between(r.traffic, machine, owner, bytes)
	}
}

// between counts n bytes from one machine to another at both.
func between(bytes []float64, a, b int32, n float64) {
	if a != b {
		bytes[a] += n
		bytes[b] += n
	}
}

// decide ends an epoch: it is accounted for, and then all strategies plan. Their moves are made at
// once and in full, although a real move takes time and may be refused.
func (s *Simulation) decide() error {
	e := s.account()
	for _, r := range s.runs {
		r.items.Home, r.items.Size = s.home, s.size
		moves, err := r.strategy.Plan(&r.items, e)
		if err != nil {
			return fmt.Errorf("strategy %s, epoch %d: %w", r.result.Strategy, s.epoch, err)
		}
		for _, m := range moves {
			// Charged to the epoch that begins now.
			between(r.moved, r.items.Owner[m.Item], m.To, float64(s.size[m.Item]))
			r.items.Owner[m.Item] = m.To
		}
		r.moves += len(moves)
	}
	s.epoch++
	s.first = s.begun
	return nil
}

// account adds the epoch to all results and returns what strategies get to see of it.
func (s *Simulation) account() *dynamic.Epoch {
	e := &dynamic.Epoch{Steps: float64(s.begun-s.first) / float64(len(s.o.Machine)), Uses: s.gather()}
	for worker, b := range s.batches {
		b.close(int32(s.o.Machine[worker]), s.o.Batches)
		e.Batches = append(e.Batches, b.newest...)
		b.newest = nil
	}
	for _, r := range s.runs {
		// A reactor's traffic was counted use by use, with the owner at that moment. That of the
		// others follows from the sums, since their owners have not changed within the epoch.
		if r.reactor == nil {
			r.traffic = dynamic.Loads(&r.items, e.Uses, s.o.Machines)
		}
		var now Epoch
		for i, bytes := range r.traffic {
			now.Busiest = max(now.Busiest, bytes+r.moved[i])
			now.Total += (bytes + r.moved[i]) / 2
			now.Migration += r.moved[i] / 2
		}
		now.Moves = r.moves
		r.result.Epochs = append(r.result.Epochs, now)
		r.result.Sum.Busiest += now.Busiest
		r.result.Sum.Total += now.Total
		r.result.Sum.Migration += now.Migration
		r.result.Sum.Moves += now.Moves
		clear(r.moved)
		clear(r.traffic)
		r.moves = 0
	}
	return e
}

// gather returns the uses of the epoch, by item and machine, and clears them.
func (s *Simulation) gather() []dynamic.Use {
	s.uses = s.uses[:0]
	for machine := range s.used {
		u := &s.used[machine]
		for _, item := range u.touched {
			s.uses = append(s.uses, dynamic.Use{Item: item, Machine: int32(machine), Bytes: u.bytes[item]})
			u.bytes[item] = 0
		}
		u.touched = u.touched[:0]
	}
	slices.SortFunc(s.uses, func(a, b dynamic.Use) int {
		return cmp.Or(cmp.Compare(a.Item, b.Item), cmp.Compare(a.Machine, b.Machine))
	})
	return s.uses
}

// close ends a worker's step, of which it makes a batch. keep is the number of batches that are
// kept.
func (b *batch) close(machine int32, keep int) {
	if len(b.pulled)+len(b.pushed) == 0 {
		return
	}
	// A strategy expects both sets. A worker that only pulls, or only pushes, is taken to do both
	// with the same keys.
	d := dynamic.Batch{Machine: machine, Pulled: set(b.pulled), Updated: set(b.pushed)}
	if len(d.Pulled) == 0 { // a worker that only pushes
		d.Pulled = d.Updated
	}
	if len(d.Updated) == 0 {
		d.Updated = d.Pulled
	}
	if b.newest = append(b.newest, d); len(b.newest) > keep {
		b.newest = slices.Delete(b.newest, 0, 1)
	}
	b.pulled, b.pushed = b.pulled[:0], b.pushed[:0]
}

// set returns the distinct items in ascending order.
func set(items []int32) []int32 {
	s := slices.Clone(items)
	slices.Sort(s)
	return slices.Compact(s)
}

// Results ends the simulation and returns the results, in the order of Options.Strategies. The last
// epoch may be a short one.
func (s *Simulation) Results() []Result {
	if s.begun > s.first {
		s.account()
		s.first = s.begun
	}
	var results []Result
	for _, r := range s.runs {
		results = append(results, r.result)
	}
	return results
}

// Keys returns the number of keys seen.
func (s *Simulation) Keys() int { return len(s.home) }

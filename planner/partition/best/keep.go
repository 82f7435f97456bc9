package best

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A saved is the stored state of a run, encoded with gob. A run that continues from it with the
// same graph and options ends with the same assignment as if it had not been interrupted: a sweep
// depends on nothing but the blocks, the tariff, the temperature and the sweep's number. Fields can
// be added but must not change their meaning.
type saved struct {
	// Digests; a state is refused if they differ.
	Graph, Options  uint64
	K               int
	Samples, Params int
	Edges           int64

	// The number of finished rounds. Each begins where the one before ended.
	Rounds uint64
	// By sample, its machine after the last finished round; nil if there is none.
	Base []int32
	// The round in progress; nil between rounds.
	Under *underway
}

// An underway is the state of a round within its annealing.
type underway struct {
	Level   int
	Block   []int32 // of the level's vertices
	Sweeps  uint64
	Wish    float64
	Cooling cooling
	// The fractions of the budget between which the level is annealed.
	From, Until           float64
	Work, All             int64
	Elapsed               time.Duration
	Price, Lasting, Rents []float32
}

// A keeping saves the state of a run from time to time. A nil *keeping saves nothing.
type keeping struct {
	keeper partition.Keeper
	saved  saved
	// The state to begin from; nil once it was taken, or if there is none.
	resume *underway
}

// take returns the state to begin from, once.
func (k *keeping) take() *underway {
	if k == nil {
		return nil
	}
	u := k.resume
	k.resume = nil
	return u
}

// pending returns the same without taking it.
func (k *keeping) pending() *underway {
	if k == nil {
		return nil
	}
	return k.resume
}

// save encodes the state and stores it.
func (k *keeping) save() error {
	var text bytes.Buffer
	if err := gob.NewEncoder(&text).Encode(&k.saved); err != nil {
		return fmt.Errorf("encoding the state of the partition: %w", err)
	}
	return k.keeper.Save(text.Bytes())
}

// openKeeping loads the state of o.Keeper. It refuses one that is of another graph or other
// options, with an error that wraps partition.ErrOtherState and says what differs.
func openKeeping(g *graph.Graph, o partition.Options) (*keeping, error) {
	k := &keeping{keeper: o.Keeper, saved: saved{
		Graph: digestGraph(g), Options: digestOptions(o),
		K: o.K, Samples: g.Samples(), Params: g.Params(), Edges: g.Edges(),
	}}
	// Digests come before the state is used: continuing with other data would end in a plausible
	// but wrong assignment.
	text, err := o.Keeper.Load()
	if err != nil || text == nil {
		return k, err
	}
	var was saved
	if err := gob.NewDecoder(bytes.NewReader(text)).Decode(&was); err != nil {
		return nil, fmt.Errorf("%w: it cannot be read: %w", partition.ErrOtherState, err)
	}
	now := &k.saved
	switch {
	case was.K != now.K:
		return nil, fmt.Errorf("%w: among %d machines, not %d", partition.ErrOtherState, was.K, now.K)
	case was.Samples != now.Samples || was.Params != now.Params || was.Edges != now.Edges:
		return nil, fmt.Errorf("%w: of data with %d samples, %d parameters and %d edges, not %d, %d and %d",
			partition.ErrOtherState, was.Samples, was.Params, was.Edges, now.Samples, now.Params, now.Edges)
	case was.Graph != now.Graph:
		return nil, fmt.Errorf("%w: of other data with as many samples, parameters and edges", partition.ErrOtherState)
	case was.Options != now.Options:
		return nil, fmt.Errorf("%w: with another seed, or other rules, capacities, link speeds, theta or earlier assignment", partition.ErrOtherState)
	case !validBlocks(was.Base, g.Samples(), o.K) && was.Base != nil, was.Under != nil && !was.Under.valid(o.K):
		return nil, fmt.Errorf("%w: its numbers are out of range", partition.ErrOtherState)
	}
	k.saved, k.resume = was, was.Under
	return k, nil
}

// validBlocks reports whether blocks has n blocks below k.
func validBlocks(blocks []int32, n, k int) bool {
	return len(blocks) == n && !slices.ContainsFunc(blocks, func(b int32) bool { return b < 0 || int(b) >= k })
}

// valid checks what later code indexes by. A file can be damaged.
func (u *underway) valid(k int) bool {
	return u.Level >= 0 && validBlocks(u.Block, len(u.Block), k) && u.Until > u.From && u.All > 0 &&
		len(u.Price) == k && len(u.Lasting) == k && len(u.Rents) == k && u.Cooling.Hot > 0
}

// digestGraph returns a hash of everything in g.
func digestGraph(g *graph.Graph) uint64 {
	h := xxhash.New()
	var buf []byte
	put := func(list []uint32) {
		buf = binary.LittleEndian.AppendUint32(buf[:0], uint32(len(list)))
		for _, x := range list {
			buf = binary.LittleEndian.AppendUint32(buf, x)
		}
		_, _ = h.Write(buf) // never fails
	}
	for s := range g.Samples() {
		put(g.ParamsOf(s))
		put([]uint32{g.SampleWeight(s)})
	}
	for p := range g.Params() {
		put([]uint32{uint32(g.Feature(p)), uint32(g.Feature(p) >> 32), g.ParamWeight(p)})
	}
	return h.Sum64()
}

// digestOptions returns a hash of those options that decide the result. The budget is left out; it
// may differ each time.
func digestOptions(o partition.Options) uint64 {
	h := xxhash.New()
	for _, x := range []any{int64(o.K), o.Seed, o.Theta, o.Capacity, o.Speed, o.Group, o.FixedSamples, o.FixedParams, o.MoveAtMost} {
		fmt.Fprintf(h, "%T %d:", x, binary.Size(x))
		_ = binary.Write(h, binary.LittleEndian, x) // into a hash, of fixed size: never fails
	}
	if o.From != nil {
		_ = binary.Write(h, binary.LittleEndian, o.From.Samples)
		_ = binary.Write(h, binary.LittleEndian, o.From.Params)
	}
	return h.Sum64()
}

// keepGoing runs one round: the first one, by fresh; one that was interrupted; or another one from
// where the last one ended. It stores and returns the better of its result and that of the rounds
// before.
func keepGoing(ctx context.Context, g *graph.Graph, o partition.Options, work int64, members int,
	fresh func(*keeping) (*partition.Assignment, error)) (*partition.Assignment, error) {
	k, err := openKeeping(g, o)
	if err != nil {
		return nil, err
	}
	var a *partition.Assignment
	if base := k.saved.Base; base == nil {
		a, err = fresh(k)
	} else {
		again := o
		// Each round draws other random numbers, or it would repeat the last one.
		again.Seed ^= k.saved.Rounds << 40
		a, err = divideFrom(ctx, g, again, work, members, base, k)
	}
	if err != nil {
		return nil, err
	}
	if base := k.saved.Base; base != nil {
		was := &partition.Assignment{Samples: base}
		if was.Params, err = partition.FlatOwners(ctx, g, base, o); err != nil {
			return nil, err
		}
		// The round may have ended worse. Then the result of the rounds before stands.
		if compareLoads(partition.Loads(g, was, o), partition.Loads(g, a, o)) <= 0 && partition.Check(g, was, o) == nil {
			a = was
		}
	}
	k.saved.Rounds++
	k.saved.Base, k.saved.Under = a.Samples, nil
	return a, k.save()
}

// keepSweep saves the state between two sweeps if the keeper says that it is due. The state refers
// to the annealer's slices; it must be encoded before the next sweep, which save does.
func (s *solver[T]) keepSweep(a *annealer[T], c *cooling, from, until float64) error {
	if s.keep == nil || !s.keep.keeper.Due() {
		return nil
	}
	s.keep.saved.Under = &underway{
		Level: s.at, Block: a.block, Sweeps: a.sweeps, Wish: a.wish, Cooling: *c, From: from, Until: until,
		Work: s.clock.work, All: s.clock.all, Elapsed: time.Since(s.clock.began),
		Price: a.price, Lasting: a.lasting, Rents: a.rent,
	}
	return s.keep.save()
}

// restore sets the clock and the annealer to a saved state. The blocks are set already.
func (s *solver[T]) restore(a *annealer[T], u *underway) {
	s.clock.work, s.clock.all = u.Work, u.All
	s.clock.began = time.Now().Add(-u.Elapsed)
	copy(a.price, u.Price)
	copy(a.lasting, u.Lasting)
	copy(a.rent, u.Rents)
	// The order of visits is a product of all shuffles so far.
	for ; a.sweeps < u.Sweeps; a.sweeps++ {
		a.shuffle()
	}
	a.wish = u.Wish
}

// shuffle orders the chunks for the next sweep. The order depends on that of the sweep before and
// on the sweep's number.
func (a *annealer[T]) shuffle() {
	rng := rand.New(rand.NewPCG(a.seed, a.sweeps+2))
	rng.Shuffle(len(a.order), func(i, j int) { a.order[i], a.order[j] = a.order[j], a.order[i] })
}
